"""What a person can do with a conversation."""

from loopline.conversations.conversation import Attachments, Conversation, WhenBusy, check_name
from loopline.conversations.interrupts import InterruptQueue, Receipt
from loopline.conversations.recovery import Recoveries, Recovery, RecoveryStatus
from loopline.conversations.subscriptions import QUEUE_CHANNEL
from loopline.conversations.turn_log import InTurn
from loopline.conversations.turns import Turns

__all__ = [
    "QUEUE_CHANNEL",
    "Attachments",
    "Conversation",
    "InTurn",
    "InterruptQueue",
    "Receipt",
    "Recoveries",
    "Recovery",
    "RecoveryStatus",
    "Turns",
    "WhenBusy",
    "check_name",
]
