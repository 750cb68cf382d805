"""What a run's records say: where its time went, whether it is trained, what it wrote."""
