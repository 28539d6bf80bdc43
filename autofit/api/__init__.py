"""The public functions: tune, sweep, measure and estimate; and what the commands need for files."""
