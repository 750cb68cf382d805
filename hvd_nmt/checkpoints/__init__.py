"""Checkpoints: written, found, read, averaged, taken apart."""
