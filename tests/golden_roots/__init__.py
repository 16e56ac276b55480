"""Roots that released versions made, each with what is known of it: ``VERSION.tar.xz`` and ``VERSION.json``.

They are never made again: whoever uses a version has roots like that one. Their rows are synthetic and their secrets
are public, so nothing in them is worth keeping from anybody.
"""
