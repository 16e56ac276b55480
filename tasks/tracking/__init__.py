"""What MLflow and Prefect are told of runs, models and sweeps."""
