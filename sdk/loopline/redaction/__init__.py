"""Redaction: personal data and secrets are replaced before a text is stored or sent."""
