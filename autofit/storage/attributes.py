"""The keys of a study's attributes."""

RECORD, RUNS, WARM_START_KEY, MODEL, FAILED, PROCESS = (
    f"autofit:{key}" for key in ("record", "runs", "kin", "model", "failed", "process")
)
"""Keys of the attributes, in this order: the prefix of the results (one per budget), the runs after the search, the key
that similar tunes share, the fingerprint of the described model, the limits below results that failed in the user's
training; and of a trial, the host and the process that runs it."""
