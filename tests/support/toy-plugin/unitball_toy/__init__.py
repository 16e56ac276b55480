"""A researcher's own package: one trainer, found by Unitball through its entry point."""
