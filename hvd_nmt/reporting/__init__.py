"""Answers about a run, as a report or in a notebook.

questions           the eleven questions (texts: questions.md); what `hvd_nmt.open_run` gives
answer              an answer, its tables, the facts behind it
answers_time        duration, step time, GPUs
answers_learning    fully trained, overfitting, learning rate
answers_network     the network as the bottleneck, step time against traffic
answers_files       training set, checkpoint
plots               the figures as SVG
markup              answers as Markdown, and HTML of it
render              report.html, in the frame of `page.html`, and report.md
notebook            answers, tables and figures in a Jupyter notebook
attention_maps      where a trained model looks while it translates
"""
