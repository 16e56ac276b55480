"""Trust models: who forms a group, how a sum is formed, what can fail, what is refused."""
