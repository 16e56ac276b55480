"""The command line: ``unitball``."""

from deployments.cli.entry_point import main

__all__ = ["main"]
