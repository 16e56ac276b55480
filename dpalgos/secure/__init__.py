"""Secure aggregation: the server sees only noisy sums."""
