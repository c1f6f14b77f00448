"""Search: files cut into chunks, the port of an index, and the ranking of what it finds."""

from loopline.search.chunks import CHUNKS_VERSION, chunk, kind_of, split_lines
from loopline.search.index import KINDS, Chunk, Hit, Index, IndexDamaged, Kind
from loopline.search.memory_index import MemoryIndex
from loopline.search.ranking import QueryTerm, name_parts, query_terms, rank

__all__ = [
    "CHUNKS_VERSION",
    "KINDS",
    "Chunk",
    "Hit",
    "Index",
    "IndexDamaged",
    "Kind",
    "MemoryIndex",
    "QueryTerm",
    "chunk",
    "kind_of",
    "name_parts",
    "query_terms",
    "rank",
    "split_lines",
]
