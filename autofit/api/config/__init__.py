"""YAML files: reading, validation and the places of errors."""
