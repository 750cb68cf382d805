"""Lines of text in, lines of text out, with trained models; below `translate` and `evaluate`.

settings.py   how to translate: backend, memory, long lines and the options of the search
engine.py     models, tokenizer and backend behind one function from lines to translations
lengths.py    lines longer than the model reads: cut, or split and joined again
columns.py    a translation as a line of output: n-best lists, scores, alignments
arrivals.py   the input, in chunks that fit into memory, or as it arrives
output.py     a file that a killed job finds again, with no line lost or doubled
texts.py      the text of a run's own data
ranks.py      one file shared by all ranks that horovodrun started
speed.py      sentences and tokens per second, latency
"""
