"""Events of a turn: what subscribers receive, and the dialects that translate it."""

from loopline.events import sse as sse
from loopline.events.dialects import DIALECTS as DIALECTS
from loopline.events.dialects import AgentEvent as AgentEvent
from loopline.events.dialects import DialectName as DialectName
from loopline.events.dialects import dialect as dialect
from loopline.events.dialects import replayed as replayed
from loopline.events.dialects.chatcli import AgentEventType as AgentEventType
from loopline.events.dialects.chatcli import go_duration as go_duration
from loopline.events.dialects.encoder import Dialect as Dialect
from loopline.events.dialects.encoder import Record as Record
from loopline.events.events import Caller as Caller
from loopline.events.events import Delta as Delta
from loopline.events.events import Event as Event
from loopline.events.events import EventSink as EventSink
from loopline.events.events import ObservedTurn as ObservedTurn
from loopline.events.events import Observer as Observer
from loopline.events.events import PartialOutput as PartialOutput
from loopline.events.mailbox import HELD_EVENTS as HELD_EVENTS
from loopline.events.mailbox import Mailbox as Mailbox
