"""Embedders: a model in a local folder, one of sentence-transformers, or one over HTTP."""
