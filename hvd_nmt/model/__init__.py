"""The Transformer, its loss and its decoder; nothing here knows of ranks or files.

device.py              whether what is traced now runs on a GPU
dropout.py             stateless masks, a pure function of (seed, step, rank, site)
layers.py              layer normalisation, feed-forward, products
attention.py           self-attention and cross-attention, masks, the cache of a decoding step
transformer_layers.py  layers of encoder and decoder, made of these
transformer.py         the model: encode, decode, one cached decoding step
openseq2seq_model.py   the model as OpenSeq2Seq feeds it
architectures.py       which of the two a configuration asks for
loss.py                token-exact label-smoothed cross-entropy
decoding.py            the options of a search for translations
candidates.py          the next tokens of hypotheses: allowed, best or drawn
beam_search.py         beam search, or drawing, over any step function
ensemble.py            several models as one
batching.py            sentences as padded batches
translator.py          models and a search as one function
scorer.py              log-probabilities and alignments of given translations
tokenizer.py           text to subword ids and back, in the graph
"""
