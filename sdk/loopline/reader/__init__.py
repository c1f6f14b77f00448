"""Reading by ref, and conversations as documents that are exported, imported and audited."""

from loopline.reader.conversation_documents import page_document as page_document
from loopline.reader.conversation_documents import source_row as source_row
from loopline.reader.conversation_documents import timeline_document as timeline_document
from loopline.reader.conversation_reader import ConversationReader as ConversationReader
from loopline.reader.conversation_reader import check_name as check_name
from loopline.reader.document_checks import DocumentError as DocumentError
from loopline.reader.document_import import audit_document as audit_document
from loopline.reader.document_import import block_at as block_at
from loopline.reader.document_import import heads_text as heads_text
from loopline.reader.document_import import import_actions as import_actions
from loopline.reader.document_import import import_mark as import_mark
from loopline.reader.document_import import read_document as read_document
from loopline.reader.document_import import read_heads as read_heads
from loopline.reader.items import Item as Item
from loopline.reader.items import Reading as Reading
from loopline.reader.items import passage_source as passage_source
from loopline.reader.items import text_of as text_of
from loopline.reader.reader import ConversationLookup as ConversationLookup
from loopline.reader.reader import ConversationView as ConversationView
from loopline.reader.reader import KnowledgeRead as KnowledgeRead
from loopline.reader.reader import Reader as Reader
from loopline.reader.reader import conversation_lookup as conversation_lookup
from loopline.reader.reader import view_conversation as view_conversation
from loopline.reader.reader import view_undamaged as view_undamaged
