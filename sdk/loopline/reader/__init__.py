"""One way in for every ref."""

from loopline.reader.audits import audit_document
from loopline.reader.documents import (
    page_document,
    source_row,
    timeline_document,
)
from loopline.reader.heads import HeadsError, heads_text, read_heads
from loopline.reader.importing import DocumentError, read_document
from loopline.reader.imports import import_actions, import_mark
from loopline.reader.passages import passage_source
from loopline.reader.reader import (
    Conversed,
    KnowledgeRead,
    OtherConversation,
    Reader,
)
from loopline.reader.reading import Item, Reading, Status
from loopline.reader.texts import text_of
from loopline.timeline import iso

__all__ = [
    "Conversed",
    "DocumentError",
    "HeadsError",
    "Item",
    "KnowledgeRead",
    "OtherConversation",
    "Reader",
    "Reading",
    "Status",
    "audit_document",
    "heads_text",
    "import_actions",
    "import_mark",
    "iso",
    "page_document",
    "passage_source",
    "read_document",
    "read_heads",
    "source_row",
    "text_of",
    "timeline_document",
]
