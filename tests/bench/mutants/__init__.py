"""Mutants: small faults put into the package one by one, to see which of them no test would notice."""
