"""The kinds of input: the knobs of each kind, and how a config is applied to its data."""
