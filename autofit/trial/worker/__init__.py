"""What runs in a trial's own process."""
