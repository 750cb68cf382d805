"""Answers about a run, as a report or in a notebook."""
