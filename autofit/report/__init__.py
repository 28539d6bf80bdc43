"""Output for people: console, HTML page, advice and the lines to paste.

This package reads records and measures nothing.
"""
