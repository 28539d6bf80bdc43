"""The engine: describes, searches, confirms and stores; prints nothing."""
