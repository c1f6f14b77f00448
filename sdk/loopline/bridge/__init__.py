"""The model classes of pydantic-ai, as models of ours."""
