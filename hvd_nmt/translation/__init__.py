"""Lines of text in, lines of text out, with trained models; below `translate` and `evaluate`.

settings.py       how to translate: backend, memory, long lines and the options of the search
engine.py         models, tokenizers and backend behind one interface, which `hvd_nmt.load` gives
long_lines.py     lines longer than the model reads, split and joined again
file_job.py       a file translated or scored chunk by chunk
reader.py         the input, in chunks that fit into memory, or as it arrives
output.py         a file that a killed job finds again, with no line lost or doubled
prepared_text.py  the text of the data that a run was trained on
systems.py        translations of a run's checkpoints, to be scored
scoring.py        BLEU, chrF2 and TER of systems, by sacreBLEU
export_check.py   whether an exported model translates as the run does
"""
