"""Knowledge: a git repository at a commit, searched and read by `ks:` refs."""

from loopline.knowledge.index_build import IndexStore, MemoryIndexes, Progress, Skipped, StoredIndex
from loopline.knowledge.passage import Passage, read_passage
from loopline.knowledge.repository import LeftOut, MemoryRepository, Repository, RepositoryFile
from loopline.knowledge.repository_space import KnowledgeState
from loopline.knowledge.space import KnowledgeSpace, SearchFilter
from loopline.knowledge.tree import KnowledgeConfig
from loopline.search import VectorState

__all__ = [
    "IndexStore",
    "KnowledgeConfig",
    "KnowledgeSpace",
    "KnowledgeState",
    "LeftOut",
    "MemoryIndexes",
    "MemoryRepository",
    "Passage",
    "Progress",
    "Repository",
    "RepositoryFile",
    "SearchFilter",
    "Skipped",
    "StoredIndex",
    "VectorState",
    "read_passage",
]
