"""Loopline: bundles whose append-only timeline is the single source of truth."""
