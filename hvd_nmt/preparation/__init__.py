"""Raw parallel text to a prepared data directory: what `hvd_nmt.prepare` does. No TensorFlow here."""
