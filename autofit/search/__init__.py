"""Decide which config to try next, and which trial to choose when the search ends."""
