"""What a person can do with a conversation."""

from loopline.conversations.background import BackgroundCalls as BackgroundCalls
from loopline.conversations.background import BackgroundList as BackgroundList
from loopline.conversations.background import BackgroundState as BackgroundState
from loopline.conversations.conversation import Attachments as Attachments
from loopline.conversations.conversation import Conversation as Conversation
from loopline.conversations.conversation import InputChecks as InputChecks
from loopline.conversations.interrupts import InterruptQueue as InterruptQueue
from loopline.conversations.interrupts import Receipt as Receipt
from loopline.conversations.interrupts import questions_of as questions_of
from loopline.conversations.recovery import LeftTurns as LeftTurns
from loopline.conversations.recovery import Recoveries as Recoveries
from loopline.conversations.recovery import Recovery as Recovery
from loopline.conversations.submission import AS_IT_IS as AS_IT_IS
from loopline.conversations.submission import HandedOver as HandedOver
from loopline.conversations.submission import Submission as Submission
from loopline.conversations.submission import Variation as Variation
from loopline.conversations.submission import WhenBusy as WhenBusy
from loopline.conversations.subscriptions import FIRST_PAGE as FIRST_PAGE
from loopline.conversations.subscriptions import PAGE as PAGE
from loopline.conversations.subscriptions import QUEUE_CHANNEL as QUEUE_CHANNEL
from loopline.conversations.subscriptions import EventOrder as EventOrder
from loopline.conversations.subscriptions import InTurn as InTurn
from loopline.conversations.subscriptions import missing_blocks as missing_blocks
from loopline.conversations.turns import Turns as Turns
