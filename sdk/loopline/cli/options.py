"""The common options of a command, and the command made of them and of its own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Concatenate, Literal

import typer

from loopline.cli.parameters import (
    OWN,
    ConversationArgument,
    ConversationOption,
    JsonOption,
    ModelOption,
    PagerOption,
    ProjectOption,
    PropOption,
    RecordOption,
    ReplayOption,
    StoreOption,
    TenantOption,
    UserOption,
    VerboseOption,
)
from loopline.cli.process import execute
from loopline.cli.terminal import Screen
from loopline.timeline import DEFAULT_USER, Reaction

Protocol = Literal["auto", "native", "json", "tagged", "thought_action"]
ReactionName = Literal["ok", "not_ok", "neutral", "none"]
REACTIONS: Mapping[str, Reaction | None] = {
    "ok": "ok",
    "not_ok": "not_ok",
    "neutral": "neutral",
    "none": None,
}
"""The reactions to a turn by the name that is typed; `none` takes a reaction back."""

BundleArgument = Annotated[str, typer.Argument(metavar="BUNDLE", help="A bundle's folder or name.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """The common options of a command; None where one was omitted."""

    conversation: str | None = None
    store: str | None = None
    model: str | None = None
    user: str | None = None
    project: str | None = None
    tenant: str | None = None
    props: Sequence[str] = ()
    record: Path | None = None
    replay: Path | None = None
    as_json: bool = False

    @property
    def user_name(self) -> str:
        """The user, else the default one."""
        return self.user or DEFAULT_USER


def command(
    work: Callable[Concatenate[Choices, Screen, ...], Coroutine[None, None, int]], *shared: str
) -> Callable[..., None]:
    """Return a command that does the `work`, with its own parameters and the `shared` ones of `call`.

    Its own ones, which have other names than all of `call`, stand before the shared ones, or where these have OWN.
    The help is the first line of its docstring.
    """

    def call(
        conversation: ConversationOption = None,
        conversation_argument: ConversationArgument = None,
        store: StoreOption = None,
        model: ModelOption = None,
        user: UserOption = None,
        project: ProjectOption = None,
        tenant: TenantOption = None,
        prop: PropOption = None,
        record: RecordOption = None,
        replay: ReplayOption = None,
        pager: PagerOption = True,
        as_json: JsonOption = False,
        verbose: VerboseOption = False,
        **own: object,
    ) -> None:
        if conversation is not None and conversation_argument not in (None, conversation):
            raise typer.BadParameter(
                "two conversations are named: write one of them", param_hint="'--conversation'"
            )
        choices = Choices(
            conversation=conversation_argument if conversation is None else conversation,
            store=store,
            model=model,
            user=user,
            project=project,
            tenant=tenant,
            props=tuple(prop or ()),
            record=record,
            replay=replay,
            as_json=as_json,
        )
        execute(
            partial(work, choices, **own),
            verbose=verbose,
            as_json=as_json,
            paged=pager and "pager" in shared,
        )

    options = inspect.signature(call, eval_str=True).parameters
    _, _, *own = inspect.signature(work, eval_str=True).parameters.values()
    names = [*shared, "verbose"] if OWN in shared else [OWN, *shared, "verbose"]
    parameters = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name in names
        for parameter in (own if name == OWN else [options[name]])
    ]
    vars(call)["__signature__"] = inspect.Signature(parameters)
    call.__doc__ = (work.__doc__ or "").partition("\n")[0]
    return call
