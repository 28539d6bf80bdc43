"""Models that predict memory and throughput, with uncertainties, from trials. These modules have no side effects."""
