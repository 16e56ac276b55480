"""A pytest plugin: what a run has compiled, and where it has rewritten assertions, the next one reads."""

import sys

# Python looks once, when it starts, whether it is forbidden.
sys.dont_write_bytecode = False
