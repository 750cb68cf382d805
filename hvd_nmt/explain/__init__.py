"""What a record means: pure functions of a `Run`, without TensorFlow."""
