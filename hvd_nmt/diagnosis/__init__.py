"""What must hold before a run starts on some hosts, and how fast it will be. For hvd_nmt.doctor."""
