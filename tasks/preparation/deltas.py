"""The delta of a run that names none: by what its releases cost, before rows are read."""

from dpalgos.guarantees import GaussianMu
from dpalgos.parameters import ParameterError
from dpalgos.secure.primitives import SecureAggregationError
from storage.errors import InputError, RefusedError
from tasks.accounts.budget import gaussian_delta, opening_cap, relation_of, tenth
from tasks.datasets.registration import default_normalisation, find_dataset
from tasks.planning.configuration import TrainingConfig
from tasks.planning.plans import is_gaussian
from tasks.planning.resolution import resolve_normalisation
from tasks.preparation.nightly_rows import preview_nights
from tasks.preparation.normalisation import mapped_ref
from tasks.preparation.partitions import planned_shards
from tasks.preparation.public_maps import featured_ref, plan_features


def settled(config: TrainingConfig) -> TrainingConfig:
    """Return a configuration that names its delta: where it does not, a share of the cap's at the account's opening.

    A plan of Gaussian losses alone spends no delta; it takes :data:`dpalgos.accounting.spending.GAUSSIAN_PART` of the
    cap's, at which its epsilon buys most. Every other plan takes a tenth, so that others have room. Both are constants
    of the account: neither what was charged nor a raised cap moves them, and so nor the run's identity and price.
    """
    if config.delta is not None:
        return config
    find_dataset(config.dataset)
    cap = opening_cap(config.dataset)
    if cap is None:
        return config.model_copy(update={"delta": config.stated_delta})
    gaussian = config.model_copy(update={"delta": gaussian_delta(cap.delta)})
    return gaussian if _spends_no_delta(gaussian) else config.model_copy(update={"delta": tenth(cap.delta)})


def _spends_no_delta(config: TrainingConfig) -> bool:
    """Whether all that a run would release is Gaussian; what cannot be planned is refused by its plan, at any delta."""
    if config.epsilon is None:
        # How much of each there is does not change the kinds of losses.
        config = config.model_copy(update={"epsilon": 1.0})
    try:
        registered = find_dataset(config.dataset)
        name = resolve_normalisation(config, default_normalisation(config.dataset))
        if config.horizon is not None:
            losses = preview_nights(config, registered, name).terms.release.guarantee().losses
            return all(isinstance(loss, GaussianMu) for loss in losses)
        mapped = mapped_ref(registered, name)
        features = plan_features(mapped, config)
        shards = planned_shards(featured_ref(mapped, features), config, registered)
        relation = relation_of(config.dataset)
        return shards is not None and is_gaussian(
            config, shards.training, shards.held_out, relation=relation, features=features
        )
    except RefusedError:
        # A horizon that must not go on is refused: at another delta it would be another horizon.
        if config.horizon is not None:
            raise
        return False
    except (InputError, ParameterError, SecureAggregationError):
        return False
