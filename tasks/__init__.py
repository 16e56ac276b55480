"""Prefect tasks: each reads references, calls one thing in dpalgos, writes one thing in storage."""
