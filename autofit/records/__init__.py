"""Plain values that all other packages share: frozen dataclasses with units in the field names."""
