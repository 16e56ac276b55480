"""Differentially private mathematics over NumPy arrays: mechanisms, accounting, projections, trainers, aggregators."""
