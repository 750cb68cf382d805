"""What a run records, written and read back."""
