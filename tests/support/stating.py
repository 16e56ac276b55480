"""What an error states in fields: for ``pytest.raises(…, check=stating(…))``, where a test once held a sentence."""

from __future__ import annotations

from collections.abc import Callable


def stating(**fields: object) -> Callable[[BaseException], bool]:
    """Return a check that an error's fields have these values.

    Parameters
    ----------
    **fields : object
        Of ``storage.errors.StatedError`` (``value``, ``bound``, ``way_out``) or ``dpalgos.parameters.ParameterError``.
    """

    def states(error: BaseException) -> bool:
        return all(getattr(error, name, None) == value for name, value in fields.items())

    return states
