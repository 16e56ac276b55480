"""The interface of notebooks: training, prediction and budgets over the same plan, door and ledger as the flows."""

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

_PACKAGES = ("flows", "tasks", "dpalgos", "storage", "deployments")


def _require_own_packages() -> None:
    """Check that Python finds Unitball's packages under their names, which are common ones, and nothing else.

    Raises
    ------
    ImportError
        Naming the file or folder that is found instead.
    """
    ours = Path(__file__).resolve().parent.parent
    for name in _PACKAGES:
        # What is imported already is what every later import gets.
        module = sys.modules.get(name) or importlib.util.find_spec(name)
        place = getattr(module, "__file__", None) or getattr(module, "origin", None)
        if place is None:
            raise ImportError(f"Unitball's package {name!r} is not next to {Path(__file__).parent}: install it again")
        file = Path(place).resolve()
        if file.parent != ours / name:
            raise ImportError(
                f"{file.parent if file.name == '__init__.py' else file} hides Unitball's package "
                f"{name!r}: rename it, or start Python in another folder",
                name=name,
            )


_require_own_packages()

if TYPE_CHECKING:
    from unitball.accounts import AccountBudget, Charge
    from unitball.column_statistics import reduce, synthesise
    from unitball.components import PrivatePCA
    from unitball.describing import describe
    from unitball.estimators import PrivateClassifier, PrivateRegressor
    from unitball.fits import BudgetError
    from unitball.pipelines import PipelineFinding, check_pipeline
    from unitball.training import TrainedModel, budget, explain, frontier, open_account, plot, predict, results, train

__all__ = [
    "AccountBudget",
    "BudgetError",
    "Charge",
    "PipelineFinding",
    "PrivateClassifier",
    "PrivatePCA",
    "PrivateRegressor",
    "TrainedModel",
    "budget",
    "check_pipeline",
    "describe",
    "explain",
    "frontier",
    "open_account",
    "plot",
    "predict",
    "reduce",
    "results",
    "synthesise",
    "train",
]
_PLACES = {
    "accounts": ("AccountBudget", "Charge"),
    "column_statistics": ("reduce", "synthesise"),
    "components": ("PrivatePCA",),
    "describing": ("describe",),
    "estimators": ("PrivateClassifier", "PrivateRegressor"),
    "fits": ("BudgetError",),
    "pipelines": ("PipelineFinding", "check_pipeline"),
    "training": (
        "TrainedModel",
        "budget",
        "explain",
        "frontier",
        "open_account",
        "plot",
        "predict",
        "results",
        "train",
    ),
}


def __getattr__(name: str) -> Any:
    # What is not used is not imported: Prefect alone takes seconds.
    for place, held in _PLACES.items():
        if name in held:
            return getattr(importlib.import_module(f"unitball.{place}"), name)
    raise AttributeError(f"module 'unitball' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
