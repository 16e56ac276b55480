"""Environment of the core: roots, settings, stores, caching, retries, events."""
