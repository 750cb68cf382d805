"""A run shown by MLflow or Weights & Biases while it trains. Never imports TensorFlow.

tracker.py      the process that follows a run, as rank 0 starts and ends it
follower.py     that process: it reads what the run records, and sends it until it has arrived
tracked_run.py  what the follower needs of a library
mlflow_run.py   a run in MLflow
wandb_run.py    a run in Weights & Biases

What is sent is read from metrics.jsonl, so nothing has to be kept in memory while a server is away,
and no library, server or network can stop or slow a training step.
"""
