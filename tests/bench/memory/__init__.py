"""A measurement of the search in past turns."""
