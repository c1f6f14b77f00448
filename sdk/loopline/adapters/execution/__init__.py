"""Backends that run programs: on this machine without isolation, in bubblewrap, and in docker."""
