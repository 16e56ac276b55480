"""Post-processing of released bases and models into one."""
