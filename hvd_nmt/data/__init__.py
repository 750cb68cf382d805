"""What a run reads: a prepared data directory, as batches. No SentencePiece here.

- `text`                what a line of text is; line pairs of two files
- `corpus`              the prepared data directory: sentences, text, manifest
- `sentences_writer`    encoded sentences written to that directory
- `vocabulary`          the pieces of the vocabulary as text
- `sentencepiece_model` the model's file, read and changed without SentencePiece
- `batch_plan`          which sentences make up each step, the same on every rank
- `mixed_epochs`        which sentences of several corpora make up each epoch
- `batches`             the ids of a rank's share of each step, padded
"""
