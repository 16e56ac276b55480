"""Separate parties, each with its own root, user and secrets, and a coordinator that sees no row."""
