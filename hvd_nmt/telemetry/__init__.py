"""What the machines did during a run, and what the training reported. Never imports TensorFlow."""
