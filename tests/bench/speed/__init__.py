"""The cost of a round, ours beside that of other libraries, in one run."""
