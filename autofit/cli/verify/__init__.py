"""`autofit verify`: measurements of what is known."""
