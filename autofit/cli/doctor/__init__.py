"""`autofit doctor`: what autofit sees on this machine, and what is wrong with it."""
