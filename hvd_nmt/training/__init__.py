"""One run on all its ranks."""
