"""Adapters: one file is one technology behind one port; only `harness` picks them."""
