"""Store trials and results in any Optuna storage, and results as files."""
