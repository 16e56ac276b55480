"""What the core needs of its place: roots, settings, stores, caching, retries, events."""
