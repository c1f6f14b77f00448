"""Adapts the model classes of pydantic-ai to the `Model` protocol."""
