"""What `loopline timeline` was asked to show: blocks, answers, requests or conversations, not all at once."""

from __future__ import annotations

from dataclasses import dataclass, replace

from loopline.cli.choices import Choices
from loopline.cli.costs import costs
from loopline.cli.door import UsageError
from loopline.cli.listing import Active, conversations
from loopline.cli.screen import Screen
from loopline.cli.telling import tell
from loopline.cli.timelines import Wanted, timeline
from loopline.cli.verifying import verified
from loopline.events import DialectName


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What is wanted of the blocks, and of the list; the others say what to show instead."""

    wanted: Wanted
    active: Active
    listed: bool = False
    verify: bool = False
    cost: bool = False
    dialect: DialectName | None = None

    @property
    def instead(self) -> dict[str, str]:
        """The options that show something else than blocks, and what that is."""
        asked = {
            "--verify": ("shows answers", self.verify),
            "--cost": ("shows requests", self.cost),
            "--dialect": ("tells of turns", self.dialect is not None),
        }
        return {option: shows for option, (shows, is_asked) in asked.items() if is_asked}


async def show(look: Look, choices: Choices, screen: Screen) -> int:
    """Show it.

    Raises:
        UsageError: some of what is asked for belongs to another thing to show.
    """
    of_blocks = look.wanted != Wanted(limit=look.wanted.limit)
    of_list = look.active != Active(limit=look.active.limit)
    if look.listed:
        if of_blocks or look.instead or choices.conversation is not None:
            raise UsageError("--list shows conversations: leave out what is asked of blocks")
        return await conversations(look.active, choices, screen)
    if of_list:
        raise UsageError("--active-after and --active-before go with --list")
    if len(look.instead) > 1:
        raise UsageError(f"{' and '.join(look.instead)} show different things: one of them")
    for option, shows in look.instead.items():
        if replace(look.wanted, turn=None) != Wanted():
            raise UsageError(f"{option} {shows}: of what chooses blocks it takes --turn alone")
    if look.verify:
        return await verified(look.wanted.turn, choices, screen)
    if look.cost:
        return await costs(look.wanted.turn, choices, screen)
    if look.dialect is not None:
        return await tell(look.dialect, look.wanted.turn, choices, screen)
    return await timeline(look.wanted, choices, screen)
