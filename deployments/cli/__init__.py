"""The command line: ``unitball``."""

from deployments.cli.app import main

__all__ = ["main"]
