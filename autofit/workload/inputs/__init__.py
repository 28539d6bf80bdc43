"""The kinds of input: the knobs of each, how a config is applied to it, and how that is written in code."""
