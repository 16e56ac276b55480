"""Errors that an algorithm raises about its public parameters, never about what rows contain."""


class ParameterError(ValueError):
    """A public parameter is outside its range; the message names the value, the bound and the way out."""


class UnknownNameError(ParameterError):
    """A name is not in the registry; the message lists the nearest names."""
