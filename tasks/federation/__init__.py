"""Parties of their own, each with its own root, user and secrets, and a coordinator that sees no row."""
