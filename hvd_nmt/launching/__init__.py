"""A run that finishes without anybody watching, for hvd_nmt.launch; its story: `supervision`."""
