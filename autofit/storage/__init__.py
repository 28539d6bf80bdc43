"""Trials and results: in any Optuna storage, and as files."""
