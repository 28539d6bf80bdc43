"""Where the cells of a sweep are tuned: on this machine, or on the hosts of a cluster."""
