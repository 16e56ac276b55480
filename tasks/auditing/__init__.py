"""Audits of whole systems: planned as any run is, repeated in memory on synthetic neighbours."""
