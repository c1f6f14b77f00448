"""Skills: texts that say how to do something, listed in the prompt and read when needed."""

from loopline.skills.document import Document, DocumentError, read_yaml
from loopline.skills.selection import REACT, Selection, selections
from loopline.skills.skill import DEFAULT_NAMESPACE, Skill, read_skill
from loopline.skills.skill import FILE as SKILL_FILE
from loopline.skills.skills import Skills

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
