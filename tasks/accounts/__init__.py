"""Between ledger and accountant: prices, budgets and what is said of them."""
