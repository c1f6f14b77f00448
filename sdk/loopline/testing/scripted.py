"""A model that replies from a script."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypedDict, Unpack, cast, get_args

from loopline import models
from loopline.clock import Clock, SystemClock
from loopline.errors import LooplineError, ModelError
from loopline.names import describe
from loopline.prompt import DecisionProtocol, protocol
from loopline.react import ANSWER_TOOL


class ScriptError(LooplineError):
    """The script has an entry of a wrong type, was not read to its end, was read beyond it, or an assertion in it failed."""


def Call(name: str, /, **arguments: object) -> models.ToolCall:
    """Return a call of a tool with these arguments; alone it is a reply that consists of this call."""
    as_sent = cast("models.JsonObject", json.loads(json.dumps(arguments)))  # JSON values only
    return models.ToolCall(name=name, arguments=as_sent)


@dataclass(frozen=True, slots=True, init=False)
class Say:
    """A reply: text, calls, or both, rendered in the protocol in force.

    A text that is a JSON object becomes a call of the answer tool, if the prompt offers one.
    """

    text: str
    calls: tuple[models.ToolCall, ...]
    thinking: str
    usage: models.Usage

    def __init__(
        self,
        text: str = "",
        /,
        *calls: models.ToolCall,
        thinking: str = "",
        usage: models.Usage | None = None,
    ) -> None:
        object.__setattr__(self, "text", text)
        object.__setattr__(self, "calls", calls)
        object.__setattr__(self, "thinking", thinking)
        object.__setattr__(self, "usage", usage or models.Usage())


@dataclass(frozen=True, slots=True)
class Raw:
    """A reply with exactly this text, in any protocol."""

    text: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """A reply in which the model refuses to answer."""

    usage: models.Usage = field(default_factory=models.Usage)


@dataclass(frozen=True, slots=True)
class Fail:
    """A request that fails with this error, after the text `after` has been streamed."""

    error: Exception | str
    after: str = ""


@dataclass(frozen=True, slots=True)
class Wait:
    """A pause of this number of seconds on the clock, before the next entry."""

    seconds: float


Line = Say | models.ToolCall | Raw | Refuse | Fail | Wait | str
Entry = Line | Callable[[models.Prompt], Line]


class CapabilityChoices(TypedDict, total=False):
    """The capabilities of a scripted model; sizes are in tokens."""

    tool_call: bool
    tool_choice: bool
    json_mode: bool
    json_schema: bool
    schema_beside_tools: bool
    vision: bool
    pdf: bool
    thinking: bool
    tail: models.TailKind
    window: int
    output_limit: int
    price: models.Price
    attachments: models.AttachmentLimits
    accepts: models.SettingSupport
    settings: models.ModelSettings


WINDOW = 1_000_000


class ScriptedModel:
    """A model that replies with the entries of its script, in order; `requests` holds every prompt."""

    def __init__(
        self,
        script: Sequence[Entry],
        *,
        aux: Mapping[models.Purpose, Sequence[Entry]] | None = None,
        strict: bool = True,
        clock: Clock | None = None,
        name: str = "scripted",
        **capabilities: Unpack[CapabilityChoices],
    ) -> None:
        """Check and store the script.

        Raises:
            ScriptError: an entry is not of one of the types of `Entry`.
        """
        self.name: str = name
        self.capabilities: models.Capabilities = replace(
            models.Capabilities(window=WINDOW, accepts=models.EVERY_SETTING), **capabilities
        )
        self.requests: list[models.Prompt] = []
        for entries in (script, *(aux or {}).values()):
            _check_script(entries)
        self._script = list(script)
        self._aux = {purpose: list(entries) for purpose, entries in (aux or {}).items()}
        self._strict = strict
        self._clock = clock
        self._failure: ScriptError | None = None

    async def stream(self, prompt: models.Prompt) -> AsyncIterator[models.TextDelta | models.Reply]:
        """Add the prompt to `requests`, and yield the text and the reply of the next entry, in the prompt's protocol.

        A `Fail` with an exception raises that exception.

        Raises:
            ScriptError: the script has ended.
            ModelError: the entry is a `Fail` with a text, or the script has no entry for this purpose.
        """
        self.requests.append(prompt)
        line = await self._next(prompt)
        match line:
            case Fail(error=error, after=after):
                if after:
                    yield models.TextDelta(text=after)
                raise error if isinstance(error, Exception) else ModelError(error)
            case Refuse(usage=usage):
                yield models.Reply(stop_reason="refusal", usage=usage)
            case Raw(text=text):
                yield models.TextDelta(text=text)
                yield models.Reply(text=text)
            case Say() as say:
                reply = _reply(_by_tool(say, prompt), protocol(prompt.options.protocol))
                if reply.text:
                    yield models.TextDelta(text=reply.text)
                yield reply

    def use_clock(self, clock: Clock) -> None:
        """Use the harness's clock if the model does not have a clock yet."""
        self._clock = self._clock or clock

    async def close(self, *, failed: bool) -> None:
        """Check that the script was read to its end, and that no assertion failed in it, when the harness closes.

        Raises:
            ScriptError: an assertion in a function of the script failed, the script was read beyond its end, or entries are
                left and the model is `strict`. Not if the harness `failed`: its own error is reported then.
        """
        if failed:
            return
        if self._failure is not None:
            raise self._failure
        if self._script and self._strict:
            entry, count = self._script[0], len(self._script)
            unread = (
                "1 entry of the script was" if count == 1 else f"{count} entries of the script were"
            )
            next_entry = describe(entry) if callable(entry) else f"{entry!r}"
            raise ScriptError(
                f"{unread} not read, the next is {next_entry[:80]}: see in exit_reason, error and pending of the last "
                "result why the model got no other request"
            )

    async def _next(self, prompt: models.Prompt) -> Say | Raw | Refuse | Fail:
        """Return the next entry; a str or a call becomes a `Say`, and each `Wait` before it sleeps on the clock."""
        while True:
            line = self._entry(prompt)
            match line:
                case str():
                    return Say(line)
                case models.ToolCall():
                    return Say("", line)
                case Wait(seconds=seconds):
                    await (self._clock or SystemClock()).sleep(seconds)
                case _:
                    return line

    def _entry(self, prompt: models.Prompt) -> Line:
        """Remove and return the next entry of the script for this purpose; a function is called with the prompt.

        Raises:
            ModelError: the script of an auxiliary purpose is missing or has ended.
            ScriptError: the script has ended, an assertion in a function failed, or it returned an invalid entry.
        """
        script = self._script
        if prompt.purpose in ("summary", "selection", "title", "search", "lesson"):
            script = self._aux.get(prompt.purpose, [])
            if not script:
                raise ModelError(
                    f"the script has no entry for the purpose {prompt.purpose!r}: pass aux={{{prompt.purpose!r}: […]}}"
                )
        if not script:
            last = str(prompt.messages[-1])[:200] if prompt.messages else ""
            self._failure = ScriptError(
                f"the script has ended, but the model got another request: {last}"
            )
            raise self._failure
        entry = script.pop(0)
        if not callable(entry):
            return entry
        try:
            line = entry(prompt)
        except AssertionError as error:
            text = f"an assertion in a function of the script failed: {error}"
            self._failure = ScriptError(text.removesuffix(": "))
            raise self._failure from error
        _check_script([line])
        return line


def _check_script(entries: Sequence[object]) -> None:
    """Raise a ScriptError for a script that is a str, or an entry that is not a `Line` and not callable."""
    if isinstance(entries, str):
        raise ScriptError(f"the script is a text: write it as a list, [{entries[:40]!r}]")
    for entry in entries:
        if not (isinstance(entry, get_args(Line)) or callable(entry)):
            raise ScriptError(
                f"{entry!r} is not an entry of a script: use a str, Say, Call, Raw, Refuse, Fail, Wait or a function"
            )


def _by_tool(say: Say, prompt: models.Prompt) -> Say:
    """Return the reply, with its text as a call of the answer tool if there is one and the text is a JSON object."""
    if say.calls or not any(tool.name == ANSWER_TOOL for tool in prompt.tools):
        return say
    arguments = models.parse_object(say.text)
    if isinstance(arguments, models.BrokenJson) or not say.text.strip():
        return say
    call = models.ToolCall(name=ANSWER_TOOL, arguments=arguments)
    return Say("", call, thinking=say.thinking, usage=say.usage)


def _reply(say: Say, decision_protocol: DecisionProtocol) -> models.Reply:
    """Render the text or the calls in the protocol; the stop reason is "tool_use" with calls, otherwise "stop"."""
    if say.calls:
        message = decision_protocol.render_calls(say.text, say.calls)
    else:
        message = decision_protocol.render_answer(say.text)
    return models.Reply(
        text=message.text,
        calls=message.calls,
        thinking=say.thinking,
        stop_reason="tool_use" if message.calls else "stop",
        usage=say.usage,
    )
