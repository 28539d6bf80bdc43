"""The code of a trial's process."""
