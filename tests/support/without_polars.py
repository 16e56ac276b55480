"""Keeps Polars out of the server of children: MLflow imports it where it is installed, and it starts threads."""

import sys

sys.modules["polars"] = None  # type: ignore[assignment]  # how Python is told that a module is not there
