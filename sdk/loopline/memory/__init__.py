"""Memory: the texts of past turns, the protocol of their index, searches in them, and facts about users."""

from loopline.memory.conversation_memory import SCOPES as SCOPES
from loopline.memory.conversation_memory import ConversationMemory as ConversationMemory
from loopline.memory.conversation_memory import PastTurns as PastTurns
from loopline.memory.conversation_memory import Scope as Scope
from loopline.memory.conversation_memory import TurnFilterOptions as TurnFilterOptions
from loopline.memory.turn_hits import TurnHit as TurnHit
from loopline.memory.turn_index import IndexedConversation as IndexedConversation
from loopline.memory.turn_index import QueryVector as QueryVector
from loopline.memory.turn_index import TurnIndex as TurnIndex
from loopline.memory.turn_index import TurnIndexDamaged as TurnIndexDamaged
from loopline.memory.turn_index import TurnUpdate as TurnUpdate
from loopline.memory.turn_texts import TARGETS as TARGETS
from loopline.memory.turn_texts import Owner as Owner
from loopline.memory.turn_texts import Target as Target
from loopline.memory.turn_texts import TurnQuery as TurnQuery
from loopline.memory.turn_texts import TurnText as TurnText
from loopline.memory.turn_texts import ordinal_of as ordinal_of
from loopline.memory.turn_texts import turn_texts as turn_texts
from loopline.memory.user_facts import MOST_FACTS as MOST_FACTS
from loopline.memory.user_facts import FactsOfTurn as FactsOfTurn
from loopline.memory.user_facts import UserFact as UserFact
from loopline.memory.user_facts import UserFacts as UserFacts
from loopline.memory.user_facts import fact_text as fact_text
