"""Privacy accounting: what releases cost together, what noise a budget buys, and whether the next plan still fits.

- within a plan: :func:`~dpalgos.accounting.composition.compose`, :func:`~dpalgos.accounting.costs.allocate`;
- a plan's price for each party: :func:`~dpalgos.accounting.costs.price`, :class:`~dpalgos.accounting.costs.PlanCost`;
  :func:`~dpalgos.accounting.costs.losses_under` puts a guarantee under the relation in force first;
- across plans, parties and partitions: :func:`~dpalgos.accounting.spending.spent`,
  :func:`~dpalgos.accounting.spending.status`, :func:`~dpalgos.accounting.spending.apply_filter`,
  :func:`~dpalgos.accounting.spending.repeats_left`.

All functions take plain values and depend on public facts only.
"""
