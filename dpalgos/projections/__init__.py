"""Dimensionality reductions: bases learnt under privacy, and maps that do not look at the rows."""
