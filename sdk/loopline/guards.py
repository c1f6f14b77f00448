"""Guards, which check every call of a tool, and what they decide."""

from loopline.react import Allow as Allow
from loopline.react import ApprovalLimits as ApprovalLimits
from loopline.react import Ask as Ask
from loopline.react import Deny as Deny
from loopline.react import Guard as Guard
from loopline.react import GuardedCall as GuardedCall
from loopline.react import Guards as Guards
from loopline.react import Verdict as Verdict
from loopline.react import allow_only as allow_only
from loopline.react import ask_before as ask_before
from loopline.react import block_repeated_failures as block_repeated_failures
from loopline.react import rate_limit as rate_limit
from loopline.react import read_only as read_only
