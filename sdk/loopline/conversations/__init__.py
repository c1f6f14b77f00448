"""What a person can do with a conversation."""

from loopline.conversations.children import run_child
from loopline.conversations.interrupts import InterruptQueue, Receipt
from loopline.conversations.logs import InTurn
from loopline.conversations.queue_notice import QUEUE_CHANNEL
from loopline.conversations.recovery import Recoveries, Recovery, RecoveryStatus
from loopline.conversations.talk import Attachments, Conversation, WhenBusy, check_name
from loopline.conversations.turns import Process, Turns

__all__ = [
    "QUEUE_CHANNEL",
    "Attachments",
    "Conversation",
    "InTurn",
    "InterruptQueue",
    "Process",
    "Receipt",
    "Recoveries",
    "Recovery",
    "RecoveryStatus",
    "Turns",
    "WhenBusy",
    "check_name",
    "run_child",
]
