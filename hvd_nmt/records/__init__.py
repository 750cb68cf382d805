"""A run read back from what it wrote."""
