"""What to try next, and which of the tried to choose."""
