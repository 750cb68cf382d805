"""The Transformer, its loss and its decoder; nothing here knows of ranks or files.

dropout.py      stateless masks, a pure function of (seed, step, rank, site)
layers.py       layer normalisation, attention, feed-forward
transformer.py  the model: encode, decode, one cached decoding step
loss.py         token-exact label-smoothed cross-entropy
beam_search.py  beam search over any step function
tokenizer.py    text to subword ids and back, in the graph
translator.py   a model and a beam search as one function
"""
