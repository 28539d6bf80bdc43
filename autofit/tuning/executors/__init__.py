"""Executors that tune the cells of a sweep on this machine, or on the hosts of a Ray cluster."""
