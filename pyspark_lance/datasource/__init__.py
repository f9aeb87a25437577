"""The data source `lance`: batch and streaming, source and sink."""
