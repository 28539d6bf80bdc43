"""The user's model and data: named, handed to another process, opened, fingerprinted."""
