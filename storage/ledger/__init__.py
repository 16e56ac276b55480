"""The ledger: accounts, what was charged to them, and the chain of entries that holds it."""
