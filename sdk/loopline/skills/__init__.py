"""Skills: texts that say how to do something, listed in the prompt and read when needed."""

from loopline.skills.imports import with_imports
from loopline.skills.skills import (
    DEFAULT_NAMESPACE,
    REACT,
    Skill,
    Skills,
    SkillSelection,
    read_skill,
    skill_selections,
)
from loopline.skills.skills import FILE as SKILL_FILE
from loopline.skills.validation import SkillProblem, check_skill, skill_folders
from loopline.skills.yaml_document import YamlDocument, YamlError, read_yaml

__all__ = [
    "DEFAULT_NAMESPACE",
    "REACT",
    "SKILL_FILE",
    "Skill",
    "SkillProblem",
    "SkillSelection",
    "Skills",
    "YamlDocument",
    "YamlError",
    "check_skill",
    "read_skill",
    "read_yaml",
    "skill_folders",
    "skill_selections",
    "with_imports",
]
