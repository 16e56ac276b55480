"""What asv keeps from commit to commit (``benchmarks/asv.conf.json``)."""
