"""The host's resources and the limits of a trial."""
