"""The kinds of input, one file each: the knobs it takes, how a config is applied to it, which kwargs to render."""
