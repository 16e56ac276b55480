"""Sweeps, reproductions, result tables, figures and pages."""
