"""Progress, results, sweeps and estimates on a terminal or in a notebook."""
