"""A result or a sweep as one HTML page."""
