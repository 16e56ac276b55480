"""What a notebook imports: training, prediction and budgets over the same plan, door and ledger as the flows."""
