"""The contents of a release of sums: the noisy integers that its guarantee is about."""

import hashlib

import numpy as np

from dpalgos.rows import Ints


class MadeOf:
    """The digest of the noisy sums of one release, equal where two computations of it differ in rounding alone.

    Guarantee
    ---------
    A sum algorithm's guarantee is that of its noisy sums y = (y_1 … y_T), integers. What is stored is a function g(y)
    of them in floating point (a mean, eigenvectors, the solution of linear equations), which processors round
    differently in the last bits: one stores g(y), another g'(y). Where both have the same y, (g(y), g'(y)) is
    post-processing of y, and both together cost what one does. Where one integer of y differs, an exact sum did, its
    noise was fresh, and the second copy is another release.

    The digest is post-processing of y as well, and may be published.
    """

    def __init__(self) -> None:
        self._digest = hashlib.sha256(b"unitball/made of sums/1")

    def digest(self) -> str:
        """Return the digest, 64 hex digits."""
        return self._digest.hexdigest()

    def add(self, step: str, noisy: Ints) -> None:
        """Take in the noisy sum of a step.

        Parameters
        ----------
        step : str
        noisy : array of int64
        """
        shape = ",".join(str(size) for size in noisy.shape).encode()
        for part in (step.encode(), shape, np.ascontiguousarray(noisy, dtype="<i8").tobytes()):
            self._digest.update(len(part).to_bytes(8, "little") + part)
