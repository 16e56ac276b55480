"""Specifications of the papers' figures and tables."""
