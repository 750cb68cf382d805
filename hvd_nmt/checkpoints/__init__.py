"""Checkpoints: written, verified, read, averaged, taken apart."""
