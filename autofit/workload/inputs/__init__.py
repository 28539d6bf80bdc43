"""One file per kind of input: the knobs it takes, how a config is applied to it, which kwargs to render."""
