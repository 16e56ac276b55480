"""Readers: one file a format, found by walking this package."""
