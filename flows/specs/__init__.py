"""Specifications of the papers' figures and tables, read without starting any engine."""

from importlib.resources import files

from dpalgos.parameters import ParameterError
from tasks.experiments.specifications import Reproduction, load

_PAPERS = ("wang2024", "huang2021", "owusu2021", "sun2021")


def known_reproductions() -> list[str]:
    """Return the names of all reproductions, in the order of the papers."""
    names = [item.name.removesuffix(".yaml") for item in files(__name__).iterdir() if item.name.endswith(".yaml")]
    return sorted(names, key=lambda name: (_PAPERS.index(name.split("-")[0]), name))


def load_reproduction(name: str) -> Reproduction:
    """Return a reproduction by name.

    Raises
    ------
    ParameterError
        Naming those that there are.
    """
    if name not in known_reproductions():
        raise ParameterError(
            f"unknown reproduction {name!r}; the reproductions are: {', '.join(known_reproductions())}"
        )
    return load(Reproduction, (files(__name__) / f"{name}.yaml").read_text("utf-8"), f"{name}.yaml")
