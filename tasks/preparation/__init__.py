"""The plan of a run, and the rows that it makes before anything is released: normalised, mapped, partitioned."""
