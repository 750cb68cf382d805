"""Raw text to batches: lines, subwords, the prepared corpus, the global batch plan."""
