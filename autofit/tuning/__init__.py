"""The engine: asks, runs, stores, confirms; prints nothing."""
