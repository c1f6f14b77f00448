"""Knowledge: a git repository at a commit, searched and read by `ks:` refs."""

from loopline.knowledge.index_build import HasIndexFiles as HasIndexFiles
from loopline.knowledge.index_build import IndexedFile as IndexedFile
from loopline.knowledge.index_build import IndexKey as IndexKey
from loopline.knowledge.index_build import IndexStore as IndexStore
from loopline.knowledge.index_build import Progress as Progress
from loopline.knowledge.passage import Passage as Passage
from loopline.knowledge.passage import read_passage as read_passage
from loopline.knowledge.repository import Repository as Repository
from loopline.knowledge.space import KnowledgeSpace as KnowledgeSpace
from loopline.knowledge.space import KnowledgeState as KnowledgeState
from loopline.knowledge.space import SearchFilter as SearchFilter
from loopline.knowledge.tree import ROOT_SETTINGS as ROOT_SETTINGS
from loopline.knowledge.tree import KnowledgeConfig as KnowledgeConfig
