"""Other libraries' sides of ``benchmarks/performance.py``, each a process in a separate environment.

``python benchmarks/peers.py NAME`` prints the seconds of one run after a warm-up; what it needs stands in
``benchmarks/peers.txt``. NumPy is all that must be there to read this file.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable

import numpy as np
from shared import Stage, unit_rows

Work = Callable[[], object]


def _dp_pca() -> Work:
    from diffprivlib.models import PCA

    features = unit_rows(20_000, 784).astype(np.float64)
    return lambda: PCA(20, epsilon=1.0, data_norm=1.0, centered=True).fit(features)


def _gaussian() -> Work:
    import opendp.prelude as dp

    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T=int)), dp.l2_distance(T=float)
    value, distribution = [0] * 300_000, dp.m.make_gaussian(*space, scale=1e5)
    return lambda: distribution(value)


PEERS = {
    "dp-pca": ("diffprivlib's PCA", _dp_pca),
    "gaussian": ("OpenDP's discrete Gaussian", _gaussian),
}
"""What another library's side of a row is called, and what makes it ready to run, by the row's name."""


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    work = PEERS[sys.argv[1]][1]()
    work()
    with Stage() as stage:
        work()
    print(json.dumps({"wall": stage.wall, "processor": stage.seconds}))
