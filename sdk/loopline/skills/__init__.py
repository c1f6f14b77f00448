"""Skills: texts that say how to do something, listed in the prompt and read when needed."""

from loopline.skills.companions import COMPACT_FILE, SkillFile, SkillTool, read_folder_file
from loopline.skills.skill import (
    DEFAULT_NAMESPACE,
    DIGEST,
    REACT,
    REACT_SHORT,
    Skill,
    SkillSelection,
    read_skill,
    skill_selections,
)
from loopline.skills.skill import FILE as SKILL_FILE
from loopline.skills.skills import FOLDER as SKILLS_FOLDER
from loopline.skills.skills import SkillPlace, Skills, add_places, join_imports
from loopline.skills.validation import SkillProblem, check_skill, skill_folders

__all__ = [
    "COMPACT_FILE",
    "DEFAULT_NAMESPACE",
    "DIGEST",
    "REACT",
    "REACT_SHORT",
    "SKILLS_FOLDER",
    "SKILL_FILE",
    "Skill",
    "SkillFile",
    "SkillPlace",
    "SkillProblem",
    "SkillSelection",
    "SkillTool",
    "Skills",
    "add_places",
    "check_skill",
    "join_imports",
    "read_folder_file",
    "read_skill",
    "skill_folders",
    "skill_selections",
]
