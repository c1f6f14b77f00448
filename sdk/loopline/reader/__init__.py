"""Reading by ref, and a conversation as a document that can be exported, imported and audited."""

from loopline.reader.chain_heads import HeadsError, audit_document, heads_text, read_heads
from loopline.reader.conversation_documents import (
    page_document,
    source_row,
    timeline_document,
)
from loopline.reader.document_checks import DocumentError
from loopline.reader.document_import import import_actions, import_mark, read_document
from loopline.reader.items import Item, Reading, Status, passage_source, text_of
from loopline.reader.reader import (
    ConversationLookup,
    ConversationView,
    KnowledgeRead,
    Reader,
    conversation_lookup,
    view_conversation,
)
from loopline.timeline import iso_time

__all__ = [
    "ConversationLookup",
    "ConversationView",
    "DocumentError",
    "HeadsError",
    "Item",
    "KnowledgeRead",
    "Reader",
    "Reading",
    "Status",
    "audit_document",
    "conversation_lookup",
    "heads_text",
    "import_actions",
    "import_mark",
    "iso_time",
    "page_document",
    "passage_source",
    "read_document",
    "read_heads",
    "source_row",
    "text_of",
    "timeline_document",
    "view_conversation",
]
