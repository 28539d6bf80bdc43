"""YAML files: reading, validation, and errors that name line and column."""
