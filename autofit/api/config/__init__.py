"""YAML files: read, checked and placed."""
