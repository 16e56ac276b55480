"""Base of all steps that fit on private rows: parameters, the account that pays, and encoded rows."""

import hashlib
import os
import secrets
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import KW_ONLY, dataclass, fields
from numbers import Real
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import validate_data

from dpalgos.parameters import ParameterError
from dpalgos.rows import Floats
from storage.frames import find_frame, number_rows
from storage.hidden_cells import cells_hidden
from storage.ledger.entries import require_name
from storage.people import MOST_ROWS, People, identifiers, named
from storage.recognition import lineage_of_rows
from storage.refs import OnViolation
from tasks.accounts.room import one_more_run
from tasks.release.prices import RUN_EPSILON
from tasks.runtime.settings import current_root
from unitball.bounds import Bounds
from unitball.fits import (
    BudgetError,
    Grouped,
)
from unitball.parameter_checks import NoNumberError, require_number, require_whole, said_of_rows, shown
from unitball.screen import called_by, warn_of_clipped, warn_of_fits
from unitball.training import MEMORY, budget, using_root
from unitball.wording import spoken_in_python


@dataclass(eq=False, repr=False)
class PrivateStep(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Base of all estimators that fit on private rows: account, declarations, encoded rows.

    The fields are the parameters of all: a data class has the constructor that scikit-learn's cloning asks for.
    """

    # Which root it was pickled on, where none is named: another process may find another one.
    _pickled_on = ""
    # What it is a clone of, kept by pickling; what it was cloned for.
    _family = ""
    _cloned = False
    # Bounds of scores along released components, from the release. Without an annotation, which would make a parameter.
    _score_bounds = cast("tuple[tuple[float, ...], tuple[float, ...]] | None", None)
    # What has to be declared of private rows without a schema, and how.
    _declares: ClassVar[tuple[str, ...]] = ("bounds",)
    _example: ClassVar[str] = "bounds=(low, high)"

    epsilon: float | None = None
    delta: float = 1e-6
    _: KW_ONLY
    account: str | None = None
    schema: Mapping[str, Any] | str | os.PathLike[str] | None = None
    bounds: Sequence[Any] | None = None
    public: bool = False
    root: str | os.PathLike[str] | None = None
    repetition: int = 0
    random_state: Any = None
    rows_per_person: int = MOST_ROWS
    disjoint_people: str = ""
    on_violation: str = "refuse"

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        """Return the class and the parameters that are not the default, each cut where it is long."""
        given = {one.name: getattr(self, one.name) for one in fields(self)}
        defaults = {one.name: one.default for one in fields(self)}
        changed = [f"{name}={shown(value)}" for name, value in given.items() if repr(value) != repr(defaults[name])]
        return f"{type(self).__name__}({', '.join(changed)})"

    def __sklearn_clone__(self) -> Any:
        cloned = super().__sklearn_clone__()
        self._family = self._family or secrets.token_hex(8)
        # A caller that clones and fits is a search or a cross-validation, which scores in its own ways.
        cloned._cloned, cloned._family, cloned._pickled_on = True, self._family, self._pickled_on
        if called_by("sklearn.model_selection"):
            # Here and not where it is fitted: that may be another process, whose warnings no notebook shows.
            self._warn_of_fits()
        return cloned

    def _warn_of_fits(self) -> None:
        # A parameter that is no number is refused where it is fitted.
        epsilon, delta = cast("tuple[object, object]", (self._epsilon, self.delta))
        if not self.public and isinstance(epsilon, Real) and isinstance(delta, Real):
            warn_of_fits(self._family, self.account, float(epsilon), float(delta))

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        if self.account is not None and self.root is None:
            state["_pickled_on"] = self._pickled_on or _digest(current_root())
        return dict(state)

    @property
    def _epsilon(self) -> float:
        """Of a fit: the stated one, or the default of public rows, which is proposed for private ones."""
        return RUN_EPSILON if self.epsilon is None else float(self.epsilon)

    @property
    def charges_(self) -> pd.DataFrame:
        """A line per release that reads rows: what it is, what it costs by itself at the fit's delta, who pays."""
        return pd.DataFrame(self._charged, columns=["epsilon", "release", "loss", "algorithm", "account", "key"])

    @spoken_in_python()
    def remaining_budget(self) -> float | None:
        """Return the largest epsilon of one more fit that the account would admit; None without an account.

        At this estimator's own ``delta``, under which another epsilon fits than under that of the account's runs.
        """
        if self.public or self.account is None or budget(self.account, root=self.root).left is None:
            return None
        with using_root(self.root):
            left = one_more_run(self.account, float(self.delta))
        return None if left is None else left.epsilon

    def _grouped(self, X: Any, groups: Any, rows: int) -> Grouped | None:
        """Return whose rows they are: by ``groups``, or by the schema's column of type person."""
        people = None if self.schema is None else self._columns.declared.people
        if groups is not None and people is not None:
            raise ParameterError(f"the schema's column {people.column} already declares the person; omit groups")
        if groups is not None:
            people = People("groups", self.rows_per_person)
            names = identifiers(np.ravel(groups).tolist() if len(np.shape(groups)) > 1 else groups)
        elif people is not None:
            names = self._columns.people(X)
        if people is None:
            return None
        if len(names) != rows or not named(names).all():
            raise ParameterError(
                f"{people.column} has {len(names)} cells, {int(named(names).sum())} of them identifiers, and there "
                f"are {rows} rows; give one identifier of the person (text or whole number) per row"
            )
        return Grouped(people=people, names=names)

    def _require_parameters(self) -> None:
        """Refuse, by name, what is no parameter, before anything is computed from it.

        Raises
        ------
        ParameterError
        """
        require_number(
            "epsilon",
            RUN_EPSILON if self.epsilon is None else self.epsilon,
            "above 0 and at most 1000",
            lambda value: 0 < value <= 1000,
        )
        require_number("delta", self.delta, "from 0 to below 1, below one over the rows", lambda value: 0 <= value < 1)
        require_whole("repetition", self.repetition, 0)
        require_whole("rows_per_person", self.rows_per_person, 1)
        if not isinstance(self.public, bool | np.bool_):
            raise ParameterError(f"public is {self.public!r}; give True, or False if the rows are private")
        if self.on_violation not in (OnViolation.REFUSE, OnViolation.CLIP):
            raise ParameterError(
                f"on_violation is {self.on_violation!r}; an estimator accepts refuse or clip. (Dropping would make "
                "the public number of rows depend on their contents; only registered data sets keep null records)"
            )
        if not isinstance(self.disjoint_people, str):
            raise ParameterError(
                f"disjoint_people is {self.disjoint_people!r}; give the reason as a text, or '' if none is declared"
            )
        self._require_kind("account", str, "the population's name")
        self._require_kind("root", (str, os.PathLike), f"a folder, or {MEMORY!r}")
        self._require_kind("schema", (Mapping, str, os.PathLike), "a mapping, or the path of a YAML file")
        if self.account is not None:
            require_name("account", self.account)
        if self.random_state is not None:
            try:
                check_random_state(self.random_state)
            except ValueError:
                raise ParameterError(
                    f"random_state is {shown(self.random_state)}; give a whole number from 0 to 2**32 - 1, a "
                    "numpy.random.RandomState, or None"
                ) from None

    def _require_kind(self, name: str, kinds: type | tuple[type, ...], what: str) -> None:
        """Refuse a parameter that is neither None nor of these types, and an empty one."""
        value = getattr(self, name)
        if not (value is None or isinstance(value, kinds)) or value == "":
            raise ParameterError(f"{name} is {shown(value)}; give {what}, or None")

    def _require_declared(self) -> None:
        """Refuse private rows whose bounds or labels would have to be learnt from them, and accounts in doubt."""
        for name in ("root", "disjoint_people"):
            if self.account is None and getattr(self, name):
                raise ParameterError(
                    f"{name} is {shown(getattr(self, name))}, which applies to an account, and none is named; "
                    f"give account="
                )
        if self.root is None and self._pickled_on not in ("", _digest(current_root())):
            raise BudgetError(
                f"this estimator was pickled with another root than {current_root()}, whose ledger may have another "
                f"account {self.account!r}; name the right one: root=FOLDER"
            )
        known = () if self._score_bounds is None else ("bounds",)
        missing = [name for name in self._declares if getattr(self, name) is None and name not in known]
        if self.schema is None and missing:
            raise ParameterError(
                f"the rows are private and {' and '.join(missing)} would have to be learnt from them; declare "
                f"{self._example} or schema=FILE, or give public=True if the rows are public"
            )

    def _validated(self, X: Any, *y: Any, **given: Any) -> Any:
        """Return rows of numbers as scikit-learn validates them, frames converted by our own rules before."""
        frame = find_frame(X)
        if frame is not None:
            X = pd.DataFrame(number_rows(frame), columns=X.columns if hasattr(X, "iloc") else list(frame.names))
        elif getattr(getattr(X, "dtype", None), "kind", "") in ("m", "M"):
            raise ParameterError(f"X is an array of {X.dtype}, not of numbers; declare a schema")
        try:
            return validate_data(self, X, *y, dtype=np.float64, **given)
        except TypeError as error:
            if not str(error).startswith("float()"):
                raise
            # It names the cell's type, and not the cell.
            raise NoNumberError(f"{error}; declare the columns: give schema=FILE") from None
        except ValueError as error:
            if y and "inconsistent numbers of samples" in str(error):
                raise ParameterError(
                    f"y has {len(y[0])} labels and X has {len(X)} rows; give one label per row"
                ) from None
            raise ParameterError(said_of_rows(error)) from None

    def _encoder(self, rows: Any) -> Bounds | None:
        """Return how numbers are encoded; None where a schema says it."""
        if self.schema is not None:
            return None
        bounds: Any = self.bounds if self.bounds is not None else self._score_bounds
        if bounds is None:
            # Of public rows alone.
            bounds = rows.min(axis=0), rows.max(axis=0)
        return Bounds.of(bounds, rows.shape[1])

    def _recognised_by(self, X: Any, features: Floats) -> dict[str, Any]:
        """Return what public rows are recognised by where they were drawn from releases."""
        if not self.public:
            return {}
        carried = {"synthesis": lineage_of_rows(X).get("synthesis", "")}
        if self._encoding is not None:
            return {"recognised_by": self._validated(X, reset=False), **carried}
        declared = self._columns.declared
        return {"recognised_by": declared.plain(features), "cells": declared.cells, **carried}

    def _encoded(self, rows: Any) -> Floats:
        """Return encoded rows, and warn of cells that were clipped to what is declared."""
        if self._encoding is None:
            encoding = self._columns.encode_or_raise(rows)
            warn_of_clipped(encoding.clipped, "the schema")
            return np.asarray(encoding.features)
        if self.bounds is not None:
            names = getattr(self, "feature_names_in_", None)
            warn_of_clipped(self._encoding.clipped(rows, names), "their bounds")
        return np.asarray(self._encoding(rows))

    def _without_cells(self) -> AbstractContextManager[None]:
        """Return what keeps cells of private rows out of errors: a notebook keeps what it shows."""
        return nullcontext() if self.public else cells_hidden()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True
        tags.input_tags.string = self.schema is not None
        return tags


def _digest(root: Path) -> str:
    """Return what tells a root's place from another without naming it."""
    return hashlib.sha256(str(root).encode()).hexdigest()[:16]
