"""Search: texts cut into chunks, and the port of whatever finds them again."""

from loopline.search.chunks import chunk
from loopline.search.index import Chunk, Hit, Index, IndexDamaged, Kind
from loopline.search.memory import MemoryIndex
from loopline.search.ranking import best
from loopline.search.words import name_parts, query_words

__all__ = [
    "Chunk",
    "Hit",
    "Index",
    "IndexDamaged",
    "Kind",
    "MemoryIndex",
    "best",
    "chunk",
    "name_parts",
    "query_words",
]
