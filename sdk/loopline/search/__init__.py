"""Search: texts cut into chunks, and the port of whatever finds them again."""

from loopline.search.chunks import CHUNKS_VERSION, chunk, kind_of, split_lines
from loopline.search.index import KINDS, Chunk, Hit, Index, IndexDamaged, Kind
from loopline.search.memory_index import MemoryIndex
from loopline.search.ranking import Term, best, name_parts, query_words

__all__ = [
    "CHUNKS_VERSION",
    "KINDS",
    "Chunk",
    "Hit",
    "Index",
    "IndexDamaged",
    "Kind",
    "MemoryIndex",
    "Term",
    "best",
    "chunk",
    "kind_of",
    "name_parts",
    "query_words",
    "split_lines",
]
