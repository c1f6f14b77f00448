"""What a person can do with a conversation."""

from loopline.conversations.conversation import Attachments as Attachments
from loopline.conversations.conversation import Conversation as Conversation
from loopline.conversations.interrupts import InterruptQueue as InterruptQueue
from loopline.conversations.interrupts import Receipt as Receipt
from loopline.conversations.recovery import Recoveries as Recoveries
from loopline.conversations.recovery import Recovery as Recovery
from loopline.conversations.submission import Submission as Submission
from loopline.conversations.submission import WhenBusy as WhenBusy
from loopline.conversations.subscriptions import QUEUE_CHANNEL as QUEUE_CHANNEL
from loopline.conversations.turn_log import InTurn as InTurn
from loopline.conversations.turns import Turns as Turns
