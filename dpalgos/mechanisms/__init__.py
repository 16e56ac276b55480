"""Noise mechanisms: distributions, calibrations, samplers, and the proofs of what they cost."""
