"""Skills: texts that say how to do something, listed in the prompt and read when needed."""

from loopline.skills.companions import COMPACT_FILE as COMPACT_FILE
from loopline.skills.companions import read_folder_file as read_folder_file
from loopline.skills.skill import DEFAULT_NAMESPACE as DEFAULT_NAMESPACE
from loopline.skills.skill import DIGEST as DIGEST
from loopline.skills.skill import REACT as REACT
from loopline.skills.skill import REACT_SHORT as REACT_SHORT
from loopline.skills.skill import SKILL_FILE as SKILL_FILE
from loopline.skills.skill import Skill as Skill
from loopline.skills.skill import SkillSelection as SkillSelection
from loopline.skills.skill import read_skill as read_skill
from loopline.skills.skill import skill_selections as skill_selections
from loopline.skills.skills import SKILLS_FOLDER as SKILLS_FOLDER
from loopline.skills.skills import SkillPlace as SkillPlace
from loopline.skills.skills import Skills as Skills
from loopline.skills.skills import add_places as add_places
from loopline.skills.skills import join_imports as join_imports
from loopline.skills.validation import check_skill as check_skill
from loopline.skills.validation import skill_folders as skill_folders
