"""Memory: the texts of past turns, the port of their index, and the search in them."""

from loopline.memory.conversation_memory import SCOPES as SCOPES
from loopline.memory.conversation_memory import ConversationMemory as ConversationMemory
from loopline.memory.conversation_memory import MemoryFilterOptions as MemoryFilterOptions
from loopline.memory.conversation_memory import PastTurns as PastTurns
from loopline.memory.conversation_memory import Scope as Scope
from loopline.memory.conversation_memory import TurnFilterOptions as TurnFilterOptions
from loopline.memory.turn_hits import Excerpt as Excerpt
from loopline.memory.turn_hits import TurnHit as TurnHit
from loopline.memory.turn_hits import rank_turns as rank_turns
from loopline.memory.turn_index import NEAREST_TEXTS as NEAREST_TEXTS
from loopline.memory.turn_index import TEXTS_TO_RANK as TEXTS_TO_RANK
from loopline.memory.turn_index import IndexedConversation as IndexedConversation
from loopline.memory.turn_index import MemoryTurnIndex as MemoryTurnIndex
from loopline.memory.turn_index import QueryVector as QueryVector
from loopline.memory.turn_index import TurnCandidates as TurnCandidates
from loopline.memory.turn_index import TurnIndex as TurnIndex
from loopline.memory.turn_index import TurnIndexDamaged as TurnIndexDamaged
from loopline.memory.turn_query import TurnQuery as TurnQuery
from loopline.memory.turn_query import ordinal_of as ordinal_of
from loopline.memory.turn_texts import TARGETS as TARGETS
from loopline.memory.turn_texts import Owner as Owner
from loopline.memory.turn_texts import Target as Target
from loopline.memory.turn_texts import TurnText as TurnText
from loopline.memory.turn_texts import turn_texts as turn_texts
