"""What a run reads: a prepared data directory, as batches. No SentencePiece here."""
