"""Services that run the steps: Prefect's and MLflow's servers and databases, their processes, Dask."""
