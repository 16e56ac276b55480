"""Roots, settings, the engine, caching, retries."""
