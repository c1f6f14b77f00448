"""Knowledge: a git repository at a commit, searched and read by `ks:` refs."""

from loopline.knowledge.index_build import (
    FileReader,
    IndexedFile,
    IndexKey,
    IndexStore,
    MemoryIndexes,
    NotesFunction,
    Progress,
    Skipped,
    StoredIndex,
)
from loopline.knowledge.passage import Passage, read_passage
from loopline.knowledge.repository import LeftOut, MemoryRepository, Repository, RepositoryFile
from loopline.knowledge.repository_space import KnowledgeState
from loopline.knowledge.space import KnowledgeSpace, SearchFilter
from loopline.knowledge.tree import KnowledgeConfig
from loopline.search import VectorState

__all__ = [
    "FileReader",
    "IndexKey",
    "IndexStore",
    "IndexedFile",
    "KnowledgeConfig",
    "KnowledgeSpace",
    "KnowledgeState",
    "LeftOut",
    "MemoryIndexes",
    "MemoryRepository",
    "NotesFunction",
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
