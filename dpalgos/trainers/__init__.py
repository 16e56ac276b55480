"""Trainers of linear models: private ones, their published originals, and non-private references."""
