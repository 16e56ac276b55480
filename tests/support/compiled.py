"""What a process loads once, done for all children of tests."""

from dpalgos import _compiled_feed

_compiled_feed.functions()
