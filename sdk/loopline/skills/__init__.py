"""Skills: texts that say how to do something, listed in the prompt and read when needed."""

from loopline.skills.document import Document, DocumentError, read_yaml
from loopline.skills.selection import REACT, Selection, selections
from loopline.skills.skill import Skill, read_skill
from loopline.skills.skills import Skills

__all__ = [
    "REACT",
    "Document",
    "DocumentError",
    "Selection",
    "Skill",
    "Skills",
    "read_skill",
    "read_yaml",
    "selections",
]
