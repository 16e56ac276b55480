"""Noise mechanisms: laws, calibrations, samplers, and the proofs of what they cost."""
