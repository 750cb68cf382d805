"""Lines of text in, lines of text out, with trained models; below `translate` and `evaluate`."""
