"""Models over HTTP, on the wires that their vendors speak."""
