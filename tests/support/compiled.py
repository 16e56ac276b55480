"""What a process compiles once, done for all children of tests: a second each otherwise."""

from dpalgos import keystream

keystream._compiled()
