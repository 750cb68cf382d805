"""Raw parallel text to a prepared data directory, for `hvd_nmt.prepare`. No TensorFlow here."""
