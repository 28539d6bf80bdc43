"""The user's model and data: named, passed to another process, opened and fingerprinted."""
