"""Keras on torch."""
