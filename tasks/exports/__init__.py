"""A run's proof as one archive that is checked on another machine."""
