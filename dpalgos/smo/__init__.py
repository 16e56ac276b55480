"""Sequential minimal optimisation of support vector machines: kernels, working set selection, the solvers."""
