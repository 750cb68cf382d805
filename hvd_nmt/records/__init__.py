"""A run read back from what it wrote.

record             what is known of a run: intervals, evaluations, samples of its hosts
read               a run directory as a record, or a log of OpenSeq2Seq
metrics            the lines of metrics.jsonl, as far as they are valid
launches           the starts by hvd_nmt.launch
reached            how far a start came
openseq2seq_log    an OpenSeq2Seq log as a record
sentences          the dev set sentence by sentence, with its translations
"""
