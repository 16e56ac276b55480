"""Empirical lower bounds on the privacy loss."""
