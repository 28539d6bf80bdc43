"""Models of memory and throughput fitted to trials, each prediction with its uncertainty. Pure."""
