"""The web: pages as readable text, and searches; all requests check the addresses of their hosts."""
