"""The fingerprint of a workload: a hash of the user's own modules and of the arguments."""
