"""Data sets as their owner knows them: registered, described, queried."""
