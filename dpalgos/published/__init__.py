"""Algorithms as their papers print them, without a proof, and the systems of the papers: for public data alone.

Nothing imports this package: its modules register themselves, and everything else finds them by name. Nothing is proved
for the algorithms here, so the door refuses them on private rows. Proved and noiseless algorithms are in the other
packages. A system is a composition of registered parts, proved or not.
"""
