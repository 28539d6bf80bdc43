"""The tuning engine: it describes the workload, runs what is worth most, and stores the result.

It prints nothing.
"""
