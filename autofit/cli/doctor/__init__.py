"""`autofit doctor`: checks of this machine and its software."""
