"""Types of columns in declared tables: one file a kind, found by the name that a schema gives it."""
