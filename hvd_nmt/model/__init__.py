"""The Transformer, its loss and its decoder; nothing here knows of ranks or files."""
