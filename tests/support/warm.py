"""Digests of our sources, computed once by the server of children: each child that plans would compute them again."""

from tasks.planning.identity import code_version

code_version()
