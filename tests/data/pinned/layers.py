"""What the pinned model is made of."""


class Block:
    """Holds its arguments."""

    scale = 2

    def __init__(self, *held):
        self.held = held
