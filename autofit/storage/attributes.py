"""The keys of a study's attributes."""

RECORD, RUNS, WARM_START_KEY, MODEL, FAILED = (f"autofit:{key}" for key in ("record", "runs", "kin", "model", "failed"))
"""Keys of the attributes, in this order: the prefix of the results (one per budget), the runs after the search, the key
that similar tunes share, the fingerprint of the described model, and the limits below results that failed in the user's
training."""
