"""Audits of whole systems: planned as any run is, repeated in memory on made-up neighbours."""
