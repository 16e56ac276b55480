"""The door: the one place where a release is admitted, drawn and stored."""
