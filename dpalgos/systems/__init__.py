"""The papers' systems and our own, as compositions of registered parts."""
