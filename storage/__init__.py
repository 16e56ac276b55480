"""Rows, shards, releases, catalogue and ledger: what Unitball keeps, and nothing about algorithms."""
