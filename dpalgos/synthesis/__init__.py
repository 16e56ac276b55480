"""Synthetic rows of a table, drawn from released counts of columns and of pairs of columns."""
