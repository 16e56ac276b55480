"""Trust models, one a file: who forms a group, how a sum is formed, what can fail, what is refused."""
