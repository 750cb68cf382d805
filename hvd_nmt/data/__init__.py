"""What a run reads: a prepared data directory, as batches. No SentencePiece here.

- `text`                what a line of text is; line pairs of two files
- `corpus`              the prepared data directory: sentences, text, manifest
- `vocabulary`          the pieces of the vocabulary as text
- `sentencepiece_model` the model's file, read and changed without SentencePiece
- `batches`             the global batch plan, the same on every rank
- `shapes`              few shapes for many batches, for XLA
- `bpe_dropout`         another segmentation of each sentence in each epoch
- `byte_pair_merges`    characters merged into pieces, compiled by Numba
- `sentence_sum`        how many sentences and which, as numbers that add up
- `mixing`              numbers as random-looking numbers
- `throughput`          how fast the batches come
"""
