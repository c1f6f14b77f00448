"""Round hooks, which run between rounds, and middleware, which wraps the run of a loop."""

from loopline.react import Hold as Hold
from loopline.react import Middleware as Middleware
from loopline.react import ReactStateV2 as ReactStateV2
from loopline.react import Reminder as Reminder
from loopline.react import RoundHook as RoundHook
from loopline.react import Stop as Stop
