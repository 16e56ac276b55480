"""Upkeep of a root: what is wrong with it, and what killed processes left in it."""
