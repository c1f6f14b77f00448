"""Skills: texts that say how to do something, listed in the prompt and read when needed."""

from loopline.skills.skills import (
    DEFAULT_NAMESPACE,
    REACT,
    Selection,
    Skill,
    Skills,
    read_skill,
    selections,
)
from loopline.skills.skills import FILE as SKILL_FILE
from loopline.skills.yaml_document import Document, DocumentError, read_yaml

__all__ = [
    "DEFAULT_NAMESPACE",
    "REACT",
    "SKILL_FILE",
    "Document",
    "DocumentError",
    "Selection",
    "Skill",
    "Skills",
    "read_skill",
    "read_yaml",
    "selections",
]
