"""What the same small programs take in five other libraries, and whether they do what they should."""
