"""What `loopline timeline` was asked to show: blocks, answers or conversations, not all at once."""

from __future__ import annotations

from dataclasses import dataclass, replace

from loopline.cli.choices import Choices
from loopline.cli.door import UsageError
from loopline.cli.listing import Active, conversations
from loopline.cli.screen import Screen
from loopline.cli.telling import tell
from loopline.cli.timelines import Wanted, timeline
from loopline.cli.verifying import verified
from loopline.events import DialectName


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What is wanted of the blocks, and of the list; `listed`, `verify` and `dialect` say what to show."""

    wanted: Wanted
    active: Active
    listed: bool = False
    verify: bool = False
    dialect: DialectName | None = None


async def show(look: Look, choices: Choices, screen: Screen) -> int:
    """Show it.

    Raises:
        UsageError: some of what is asked for belongs to another thing to show.
    """
    of_blocks = look.wanted != Wanted(limit=look.wanted.limit)
    of_list = look.active != Active(limit=look.active.limit)
    if look.listed:
        if of_blocks or look.verify or look.dialect or choices.conversation is not None:
            raise UsageError("--list shows conversations: leave out what is asked of blocks")
        return await conversations(look.active, choices, screen)
    if of_list:
        raise UsageError("--active-after and --active-before go with --list")
    if look.verify:
        if look.dialect is not None:
            raise UsageError("--verify shows answers and --dialect what was told: one of them")
        if replace(look.wanted, turn=None) != Wanted():
            raise UsageError("--verify shows answers: of what chooses blocks it takes --turn alone")
        return await verified(look.wanted.turn, choices, screen)
    if look.dialect is not None:
        if replace(look.wanted, turn=None) != Wanted():
            raise UsageError(
                "--dialect tells of turns: of what chooses blocks it takes --turn alone"
            )
        return await tell(look.dialect, look.wanted.turn, choices, screen)
    return await timeline(look.wanted, choices, screen)
