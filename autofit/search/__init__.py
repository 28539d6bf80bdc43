"""Decide which config to try next, and which of the trials to choose."""
