"""Fitted models of what has been measured, each with its uncertainty: pure functions of trials."""
