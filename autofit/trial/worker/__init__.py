"""The code that runs in a trial's process."""
