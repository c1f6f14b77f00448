"""The conformance suite of the protocol: what it calls, and what is expected of it."""
