"""Readers: one file per format, found by walking this package."""
