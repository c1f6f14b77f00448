"""Knowledge: a git repository at a commit, searched and read by `ks:` refs."""

from loopline.knowledge.building import Progress
from loopline.knowledge.config import KnowledgeConfig
from loopline.knowledge.indexes import IndexStore, MemoryIndexes, StoredIndex
from loopline.knowledge.passage import Passage
from loopline.knowledge.reading import read_passage
from loopline.knowledge.report import Skipped
from loopline.knowledge.repository import Entry, MemoryRepository, Repository
from loopline.knowledge.space import KnowledgeSpace, KnowledgeState

__all__ = [
    "Entry",
    "IndexStore",
    "KnowledgeConfig",
    "KnowledgeSpace",
    "KnowledgeState",
    "MemoryIndexes",
    "MemoryRepository",
    "Passage",
    "Progress",
    "Repository",
    "Skipped",
    "StoredIndex",
    "read_passage",
]
