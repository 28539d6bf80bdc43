"""What this host has, and what a trial may use of it."""
