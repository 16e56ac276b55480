"""Rows of a public data set for audits: a sample of two classes in memory, and canaries among them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpalgos.guarantees import Neighbours
from dpalgos.normalisation import UnitNorm
from dpalgos.rows import Floats, Ints
from storage.datasets import open_dataset
from storage.errors import InputError, RefusedError
from tasks.auditing.synthetic import Neighbouring, differing, partitioned
from tasks.datasets.description import find_dataset
from tasks.runtime.settings import current_layout


@dataclass(frozen=True, slots=True)
class PublicSample:
    """Rows of two classes, of norm 1, and as many others to put in their place.

    Parameters
    ----------
    dataset : str
    features : array (n, d)
    labels : int array (n,)
        0 or 1.
    spare_features : array (n, d)
    spare_labels : int array (n,)
    """

    dataset: str
    features: Floats
    labels: Ints
    spare_features: Floats
    spare_labels: Ints


def public_sample(name: str, rows: int, seed: int) -> PublicSample:
    """Return rows of the first two classes of a public data set, drawn without replacement.

    Parameters
    ----------
    name : str
    rows : int
        How many to train on; as many again are held back. Even.
    seed : int

    Raises
    ------
    RefusedError
        If the set is private: what an audit prints is about its rows.
    InputError
        If it has real labels, or too few rows of two classes.
    """
    dataset = find_dataset(name)
    if dataset.private:
        raise RefusedError(
            f"{name} is private: audits run on synthetic rows and on rows of public data sets, never on private ones"
        )
    if len(dataset.classes) < 2:
        raise InputError(f"{name} has real labels; an audit needs a public set with classes")
    blocks = list(open_dataset(current_layout(), dataset).blocks())
    features = np.concatenate([np.asarray(block, dtype=np.float64) for block, _ in blocks])
    labels = np.concatenate([np.asarray(block, dtype=np.int64) for _, block in blocks])
    places = np.flatnonzero(labels < 2)
    if len(places) < 2 * rows:
        raise InputError(
            f"{name} has {len(places)} rows of its first two classes and {2 * rows} are needed: half to train on and "
            "half to put in their place; choose a larger set or fewer rows"
        )
    chosen = np.random.default_rng(seed).permutation(places)[: 2 * rows]
    mapped = UnitNorm()(features[chosen])
    return PublicSample(name, mapped[:rows], labels[chosen[:rows]], mapped[rows:], labels[chosen[rows:]])


def canary_pairs(sample: PublicSample, neighbours: Neighbours) -> list[Neighbouring]:
    """Return neighbours that differ in a canary among public rows, in the first party.

    The canaries: the row farthest from the mean of its class; a row with the other class's label; and the support
    vector of largest dual coefficient of a support vector machine without privacy on all rows. Under ``replace-one``
    the other data set holds in its place an ordinary row that was held back, the one nearest to the mean of the other
    class (the flipped label: the same row with its own); under ``replace-special`` a null record.
    """
    from sklearn.svm import SVC

    features, labels = sample.features, sample.labels
    base = partitioned(features, labels)
    means = np.stack([features[labels == label].mean(axis=0) for label in (0, 1)])
    own = np.arange(0, len(features), 2)
    far = int(own[np.linalg.norm(features[own] - means[labels[own]], axis=1).argmax()])
    machine = SVC(kernel="linear").fit(features, labels)
    weight = np.zeros(len(features))
    weight[machine.support_] = np.abs(machine.dual_coef_[0])
    # Of those at the bound of the dual, the one that violates its margin most.
    weight += 1e-6 * np.maximum(0.0, 1.0 - (2 * labels - 1) * machine.decision_function(features))
    support = int(own[weight[own].argmax()])
    typical = int(own[np.linalg.norm(features[own] - means[labels[own]], axis=1).argmin()])

    def pair(name: str, place: int, label: int, other: tuple[Floats, int]) -> Neighbouring:
        right = None if neighbours is Neighbours.REPLACE_SPECIAL else other
        return differing(name, base, place // 2, (features[place], label), right)

    def ordinary(place: int) -> tuple[Floats, int]:
        spare = int(np.linalg.norm(sample.spare_features - means[1 - labels[place]], axis=1).argmin())
        return sample.spare_features[spare], int(sample.spare_labels[spare])

    own_label = int(labels[typical])
    return [
        pair(f"the row of {sample.dataset} farthest from its class", far, int(labels[far]), ordinary(far)),
        pair(f"a row of {sample.dataset} with the other label", typical, 1 - own_label, (features[typical], own_label)),
        pair(f"a support vector of {sample.dataset}", support, int(labels[support]), ordinary(support)),
    ]
