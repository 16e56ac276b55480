"""Charged evaluation on private hold-out rows: noisy counts from which every usual metric follows."""
