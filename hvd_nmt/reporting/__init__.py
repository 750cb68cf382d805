"""Answers about a run, as a report or in a notebook.

run_summary         a run as `hvd_nmt.open_run` gives it
questions           the eleven questions and what they are answered from
answer              an answer, its tables, the facts behind it
answers_time        duration, step time, GPUs
restarts            starts by hvd_nmt.launch, a part of the duration
answers_learning    fully trained, overfitting, learning rate
answers_network     the network as the bottleneck, step time against traffic
answers_files       training set, checkpoint
cost                energy and money
scaling             several runs side by side
plots               the figures
svg                 a figure as SVG in the colours of its page
markup              text of any origin made safe for HTML and Markdown
render              report.html and report.md; templates/ are their pages
notebook            answers, tables and figures in a Jupyter notebook
attention_maps      where a trained model looks while it translates
"""
