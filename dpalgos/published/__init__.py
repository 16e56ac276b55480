"""Algorithms as their papers print them, without a proof, and the systems of the papers: for public data alone.

Nothing imports this package: its modules register themselves, and everything else finds them by name. Of each
algorithm here nothing is proved, so that the door refuses it on private rows; what is proved, or draws no noise, is in
the packages beside. A system is a composition of registered parts, proved or not.
"""
