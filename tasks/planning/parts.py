"""Faults of a configuration: each part and parameter is checked alone, and all faults are reported at once."""

from collections.abc import Callable
from typing import TypeVar

from dpalgos.guarantees import ApproximateDP, GaussianMu, Loss, PureEpsilon, ZeroConcentrated
from dpalgos.parameters import ParameterError
from dpalgos.registry import lookup
from dpalgos.secure.primitives import SecureAggregationError
from storage.errors import InputError, RefusedError
from storage.refs import DatasetRef
from tasks.planning.configuration import TrainingConfig
from tasks.planning.resolution import Resolved, resolve

_T = TypeVar("_T")
# Any budget of each kind: parameters are checked before it is known how the run's budget is split.
_BUDGETS: dict[type[Loss], Loss] = {
    PureEpsilon: PureEpsilon(1.0),
    GaussianMu: GaussianMu(0.25),
    ZeroConcentrated: ZeroConcentrated(0.03),
    ApproximateDP: ApproximateDP(1.0, 1e-5),
}


class Faults:
    """Collects what is wrong, each thing once."""

    def __init__(self) -> None:
        self._found: dict[str, Exception] = {}

    def of(self, check: Callable[[], _T]) -> _T | None:
        """Return what a check returns; None where it finds a fault, which is kept."""
        try:
            return check()
        except (InputError, ParameterError, RefusedError, SecureAggregationError) as error:
            self.add(error)
            return None

    def add(self, error: Exception) -> None:
        """Keep a fault."""
        self._found.setdefault(str(error), error)

    def has(self, others: "Faults") -> bool:
        """Return whether what others have found is among what was found here."""
        return others._found.keys() <= self._found.keys()

    def take(self, others: "Faults") -> None:
        """Keep what others have found."""
        for error in others._found.values():
            self.add(error)

    def raise_all(self) -> None:
        """Raise what was found as one error: bad input where there is any, otherwise the refusal."""
        errors = list(self._found.values())
        if len(errors) == 1:
            raise errors[0]
        if errors:
            refused = all(isinstance(error, RefusedError) for error in errors)
            raise (RefusedError if refused else InputError)("; ".join(self._found))


def draws_noise(config: TrainingConfig, dataset: DatasetRef) -> bool:
    """Whether a run needs an epsilon; what cannot be resolved counts as needing one, and is refused by its plan."""
    resolved = Faults().of(lambda: resolve(_bare(config), dataset))
    return config.horizon is not None or resolved is None or _is_noisy(resolved)


def _bare(config: TrainingConfig) -> TrainingConfig:
    # A missing budget is a separate fault; where parts are chosen by it, any tells what they are.
    return config.model_copy(update={"parameters": {}, "dimension": None, "epsilon": config.epsilon or 1.0})


def _is_noisy(resolved: Resolved) -> bool:
    noisy = [part for name, part in resolved.parts.items() if name in ("projection", "trainer")]
    return any(lookup(part.kind, part.name).budgets for part in noisy)


def check_parts(config: TrainingConfig, dataset: DatasetRef, faults: Faults) -> None:
    """Look at each part and at each of its parameters alone, so that one fault does not hide another."""
    bare = _bare(config)
    resolved = faults.of(lambda: resolve(bare, dataset))
    if resolved is None:
        return
    faults.of(lambda: resolve(bare.model_copy(update={"dimension": config.dimension}), dataset))
    if config.epsilon is None and _is_noisy(resolved):
        faults.add(ParameterError(f"{resolved.name} draws noise: give a total budget, for example --epsilon 1"))
    given = {field: value for field, value in config.parameters.items() if not field.startswith("partition.")}
    # Parameters that fit together are no fault, even where one without the other is (maps and their weights).
    together, alone = Faults(), Faults()
    if given and together.of(lambda: _check_parameters(bare, dataset, given)) is None:
        for field, value in given.items():
            alone.of(lambda field=field, value=value: _check_parameters(bare, dataset, {field: value}))  # type: ignore[misc]  # bound now
        # Where none of them says by itself what is wrong with all, they do not fit together.
        faults.take(alone if alone.has(together) else together)


def _check_parameters(config: TrainingConfig, dataset: DatasetRef, parameters: dict[str, object]) -> bool:
    """Build the parts with some of the parameters, and return true."""
    given = config.model_copy(update={"parameters": parameters})
    for part in resolve(given, dataset).parts.values():
        budgets = getattr(lookup(part.kind, part.name), "budgets", ())
        part.with_parameters(**({"budget": _BUDGETS[budgets[0]]} if budgets else {})).build()
    return True
