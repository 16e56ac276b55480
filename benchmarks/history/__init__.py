"""Benchmarks that asv repeats from commit to commit (``benchmarks/asv.conf.json``)."""
