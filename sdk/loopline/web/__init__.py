"""The web: pages as readable text, and searches, each behind a guard of addresses."""
