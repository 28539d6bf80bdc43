"""HTML pages of results, sweeps and estimates."""
