"""The skills of the guide, and who sees them."""

CUSTOM_SKILLS_ROOT = "skills"

AGENTS_CONFIG = {"react": {"enabled": ["public.*"]}}
