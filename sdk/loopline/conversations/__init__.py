"""What a person can do with a conversation."""

from loopline.conversations.children import run_child
from loopline.conversations.talk import Receipt, Talk, WhenBusy
from loopline.conversations.turns import Process, Turns

__all__ = ["Process", "Receipt", "Talk", "Turns", "WhenBusy", "run_child"]
