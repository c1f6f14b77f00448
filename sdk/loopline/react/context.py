"""The context of a turn: it offers tools, opens rounds, fits their prompts into the model's window, and records them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from functools import lru_cache, partial
from hashlib import sha256
from math import ceil
from operator import attrgetter, is_
from typing import Literal
from zoneinfo import ZoneInfo

from msgspec import Struct, structs

from loopline import prompt
from loopline import timeline as tl
from loopline.clock import Clock, elapsed_ms
from loopline.errors import ModelError, ModelOverflow
from loopline.events import Delta, EventSink
from loopline.models import (
    NOTHING_SET,
    JsonObject,
    Message,
    Model,
    Options,
    Prompt,
    ToolSpec,
    dumps,
)
from loopline.models.prompt import cost, cost_of_files, estimate
from loopline.react.compaction import Compaction, age_window
from loopline.react.loop_options import choose_protocol
from loopline.react.model_requests import (
    MeteredModel,
    RequestLimits,
    learn_overflow,
    recount,
    request_limits,
)
from loopline.react.replies import ANSWER_TOOL, TypedAnswer, answer_record
from loopline.react.tool_runtime import ToolRuntime
from loopline.tasks import compute
from loopline.tools import (
    DELEGATE,
    MCP,
    REQUEST_TOOLS,
    SELECT_ABOVE,
    RequestTools,
    ToolSet,
    is_built_in,
    requested_tools,
    select_tools,
)

PRUNE_BUFFER_SECONDS = 10
"""The provider's cache counts as cold this long before it expires."""
RENDERED_INLINE = 100
"""The most blocks that are rendered in the event loop; more blocks are rendered in a thread."""
RoundPurpose = Literal["decision", "answer"]

_FIXED_FIELDS = attrgetter(
    *("model", "protocol", "renderer", "system_sha256", "tools_sha256", "limit", "purpose"),
    *("answer_by", "schema_sha256", "settings", "dropped_settings"),
)
"""The fields of a round that do not depend on the messages that it shows."""

KEPT_TEXTS = 64
"""The most texts with a cached digest and token count; the turns of a bundle usually have the same texts."""
_DEFERRED = f"tools of MCP servers are requested, with {REQUEST_TOOLS}, if there are more than {SELECT_ABOVE} tools"


class ToolOffering(Struct, frozen=True, kw_only=True):
    """Tools, and the parts of a prompt that describe them; `fixed` is the cost of these parts, in tokens.

    The digests are sha256 in hexadecimal. `specs` are empty in protocols that describe the tools in the system text.
    """

    tools: ToolSet
    specs: tuple[ToolSpec, ...]
    system: str
    system_sha256: str
    tools_text: str
    tools_sha256: str
    fixed: int

    @classmethod
    def of(
        cls,
        tools: ToolSet,
        instructions: str,
        encoding: prompt.DecisionProtocol,
        answer: TypedAnswer | None = None,
    ) -> ToolOffering:
        """Return the offering of these tools in a protocol, with the instructions and tool of a typed answer."""
        manual = encoding.manual(tools.specs)
        about_answer = answer.instructions if answer else ""
        system = "\n\n".join(part for part in (instructions, manual, about_answer) if part)
        specs = (*tools.specs, *(answer.specs if answer else ()))
        text = _tools_text(_SameSpecs(specs))
        native = encoding.name == prompt.NATIVE
        form = answer.form if answer else None
        system_sha256, system_tokens = _measure(system)
        tools_sha256, tools_tokens = _measure(text)
        return cls(
            tools=tools,
            specs=specs if native else (),
            system=system,
            system_sha256=system_sha256,
            tools_text=text,
            tools_sha256=tools_sha256,
            fixed=system_tokens
            + (tools_tokens if native else 0)
            + (estimate(dumps(form.schema)) if form else 0),
        )

    @classmethod
    def for_trace(cls, answer: TypedAnswer | None = None) -> ToolOffering:
        """Return the offering without tools of a request that shows the trace of a turn."""
        offering = cls.of(ToolSet(), prompt.TRACE_SYSTEM, prompt.protocol(prompt.NATIVE), answer)
        # An empty list of tools is recorded, but not sent.
        return structs.replace(offering, fixed=offering.fixed - estimate(offering.tools_text))


class OfferedTools(Struct, frozen=True):
    """The tools that a turn offers: all, or after a selection the selected ones and those that were requested since."""

    recorder: tl.Recorder
    tools: ToolSet
    instructions: str
    protocol: prompt.DecisionProtocol
    answer: TypedAnswer | None
    cache: dict[tuple[str, ...] | None, ToolOffering] = {}

    @property
    def current(self) -> ToolOffering:
        """The offering of the next round; the same object while the offered tools are the same."""
        names = self._active_names()
        if names not in self.cache:
            tools = self.tools
            if names is not None:
                chosen = [tool for name, tool in self.tools.items() if name in names]
                can_ask = REQUEST_TOOLS in names
                requests = [] if can_ask else [RequestTools(self.tools.specs, names)]
                tools = ToolSet([*chosen, *requests])
            self.cache[names] = ToolOffering.of(
                tools, self.instructions, self.protocol, self.answer
            )
        return self.cache[names]

    async def select(self, model: Model, clock: Clock, listen: EventSink) -> None:
        """Have the model select tools for the prompt of the turn, and record the selection; at most once a turn.

        A selection of all tools is recorded only if the request for it failed. A turn without a prompt of a user is
        skipped.
        """
        turn = self.recorder.turn
        if turn.selected is not None or turn.prompt is None:
            return
        if not isinstance(turn.prompt.body, tl.UserPrompt):
            return
        pinned = [name for name in self.tools if is_built_in(name)]
        delta = Delta(
            type="progress", channel="tools", text="selecting tools", total=len(self.tools)
        )
        start = clock.elapsed()
        chosen = await select_tools(
            model,
            self.tools.specs,
            turn.prompt.body.text,
            pinned=pinned,
            on_request=lambda: listen(delta),
        )
        if len(chosen.chosen) == len(self.tools) and not chosen.fallback:
            return
        body = tl.ToolsSelected(
            names=chosen.chosen,
            why=chosen.fallback,
            model=model.name,
            elapsed_ms=elapsed_ms(clock, start),
            usage=chosen.usage,
            cost=model.capabilities.cost(chosen.usage),
        )
        await self.recorder.record(body)

    async def defer_mcp_tools(self) -> None:
        """If there are many tools, offer those of MCP servers only through `react.request_tools`, and record this.

        Many are more than `SELECT_ABOVE`, without the built-in tools. A selection that the turn has already is not
        changed.
        """
        if len(self.tools) <= SELECT_ABOVE or self.recorder.turn.selected is not None:
            return
        own_tools = [name for name in self.tools if not name.startswith(f"{MCP}.")]
        counted = [name for name in self.tools if not is_built_in(name)]
        if len(counted) > SELECT_ABOVE and len(own_tools) < len(self.tools):
            await self.recorder.record(tl.ToolsSelected(names=tuple(own_tools), why=_DEFERRED))

    def _active_names(self) -> tuple[str, ...] | None:
        """Return the names of the offered tools; None if all are offered."""
        selected = self.recorder.turn.selected
        if selected is None:
            return None
        active = {*selected.names, *requested_tools(self.recorder.timeline, self.recorder.number)}
        names = tuple(name for name in self.tools if name in active)
        return None if len(names) == len(self.tools) else names


class _SameSpecs(tuple[ToolSpec, ...]):
    """Specifications that are equal if each is the same object; a cache lookup by them does not compare schemas."""

    __slots__ = ()

    def __hash__(self) -> int:
        return hash(tuple(map(id, self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _SameSpecs) or len(self) != len(other):
            return False
        return all(map(is_, self, other))


_tools_text = lru_cache(KEPT_TEXTS)(prompt.tools_text)


@lru_cache(KEPT_TEXTS)
def _measure(text: str) -> tuple[str, int]:
    """Return the sha256 of a text in hexadecimal, and its estimated tokens."""
    return sha256(text.encode()).hexdigest(), estimate(text)


class Iteration(Struct, frozen=True, kw_only=True):
    """The position of a round in its turn: `decisions` were made, of at most `limit`, where 0 means unlimited.

    With `traces` the round requests an answer from the trace of the turn.
    """

    decisions: int
    limit: int
    purpose: RoundPurpose = "decision"
    traces: bool = False

    @property
    def number(self) -> int:
        """The number of the round, from 1; a request after the last decision has the number of that decision."""
        return min(self.decisions + 1, self.limit) if self.limit else self.decisions + 1

    @property
    def has_few_left(self) -> bool:
        """Whether so few decisions remain that a kept tail must state their number."""
        return bool(self.limit) and self.limit - self.number <= prompt.FEW_LEFT


class _Additions(Struct, frozen=True):
    """The additions of a request to the earlier messages: the tail and the user inputs; `tokens` is the cost of both."""

    tail: str
    inputs: prompt.InputMessages
    tokens: int


class Context:
    """Opens the rounds of a turn and makes their prompts.

    `model` makes the decisions, `selector` selects tools, `tools` are all tools of the loop, and `system` the instructions.
    The tools named in `on_demand` are offered once a message leaves something out that a ref restores, and from then on.
    """

    def __init__(
        self,
        runtime: ToolRuntime,
        *,
        model: Model,
        selector: Model,
        tools: ToolSet,
        system: str,
        on_demand: Collection[str] = (),
    ) -> None:
        self._quota = runtime.quota
        self._runtime = runtime
        self._recorder = runtime.recorder
        self._clock = runtime.clock
        self._options = runtime.options
        self._selector = selector
        self._all_tools = tools
        self._on_demand = on_demand
        self._instructions = system
        self._trace: Sequence[Message] | None = None
        self.tokens: int = 0
        self._output = 0
        self._cache_key = sha256(repr(runtime.recorder.conversation).encode()).hexdigest()[:32]
        self._select_model(model)

    def use(self, model: Model) -> None:
        """Make the prompts for this model from now on, in the best protocol that it supports."""
        if model is not self.model:
            self._select_model(model)

    def _select_model(self, model: Model) -> None:
        """Set the model, and derive its protocol, settings, answer type, offered tools and view from it."""
        timeline = self._recorder.timeline
        self.model: Model = model
        self._limits_without_lesson: RequestLimits = request_limits(
            model.capabilities, None, self._recorder.number
        )
        self.protocol: prompt.DecisionProtocol = choose_protocol(self._options, model)
        supported = model.capabilities.supported(
            self._options.settings, model.name, self._options.reasoning_effort or ""
        )
        is_set = supported is not NOTHING_SET
        self._settings = supported.settings if is_set else None
        self._recorded_settings: JsonObject = supported.settings.recorded() if is_set else {}
        self._dropped_settings = {**supported.dropped}
        self._decision_options: Options | None = None
        self._offered: tuple[object, object, object] = None, None, None
        if DELEGATE in self._all_tools:
            self.protocol = prompt.protocol(self.protocol.name, delegate=DELEGATE)
        self._typed_answer: TypedAnswer | None = None
        output = self._runtime.output
        if output is not None and not self._options.synthesizes:
            name = self.protocol.name
            self._typed_answer = TypedAnswer.for_decisions(output, model.capabilities, name)
            delegate = DELEGATE if DELEGATE in self._all_tools else ""
            self.protocol = prompt.protocol(name, values=True, delegate=delegate)
        encodes = prompt.protocol(self.protocol.name)
        offered = self._all_tools
        if self._on_demand:
            waiting = self._on_demand
            offered = ToolSet(tool for name, tool in offered.items() if name not in waiting)
        self._offered_tools = OfferedTools(
            self._recorder, offered, self._instructions, self.protocol, self._typed_answer
        )
        self._offering = self._offered_tools.current
        self.view: prompt.View = timeline.fold(
            prompt.View,
            f"view.{self.protocol.name}",
            lambda: prompt.View(encodes, learned=timeline.base.learned),
        )

    def _meets_demand(self, now: prompt.Rendering, room: int) -> bool:
        """Offer the on-demand tools if the prompt has omissions or is near `room` tokens; return whether it does.

        The round that is the first to leave something out is then opened again with them, so only one epoch opens.
        """
        if not now.has_omissions and self.tokens <= prompt.TRIGGER * room:
            return False
        self._on_demand = ()
        self._select_model(self.model)
        return True

    def answer(self, *, traces: bool) -> TypedAnswer | None:
        """Return the type of the answers of decisions, or with `traces` of requests with the trace; None without a type."""
        if not traces:
            return self._typed_answer
        output = self._runtime.output
        return TypedAnswer.for_trace(output, self.model.capabilities) if output else None

    @property
    def tools(self) -> ToolSet:
        """The tools that the round offers; calls of other tools are refused."""
        return self._offering.tools

    @property
    def all_tools(self) -> ToolSet:
        """All tools of the loop, also those that the round does not offer."""
        return self._all_tools

    async def select_tools(self) -> None:
        """If there are many tools, reduce the offered tools as the option `select_tools` says, and record the choice.

        With True the selector model chooses them, with None only the tools of MCP servers are deferred, and with
        False all tools stay.
        """
        if self._options.select_tools:
            selector = MeteredModel(self._selector, self._quota)
            await self._offered_tools.select(selector, self._clock, self._runtime.listen)
        elif self._options.select_tools is None:
            await self._offered_tools.defer_mcp_tools()

    async def open_quota(self) -> None:
        """Open the budget of the turn, with the usage that its log and the logs of its unfinished child runs record."""
        recorder = self._recorder
        self._quota.open(recorder.turn, self._options, recorder)
        if self._quota.is_limited:
            await recount(self._quota, recorder.turn, recorder.conversation.name, recorder)

    def list_models(self, models: Sequence[Model]) -> Sequence[Model]:
        """Return `models`, the models of the decisions, with the other models that the turn may request."""
        return [*models, self._selector] if self._options.select_tools else models

    @property
    def metered(self) -> MeteredModel:
        """The model; its requests of the open round are reserved from the budget."""
        return MeteredModel(self.model, self._quota, tokens=self.tokens)

    @property
    def can_afford_answer(self) -> bool:
        """Whether the remaining budget is large enough for an answer from the trace of the turn."""
        room = self._quota.room(self.model)
        return room is None or room > self._trace_offering.fixed + estimate(prompt.TRACE_TAIL)

    @property
    def _trace_offering(self) -> ToolOffering:
        return ToolOffering.for_trace(self.answer(traces=True))

    async def begin(self, iteration: Iteration) -> bool:
        """Open a round and record it; return False if the user has recalled the prompt of the turn.

        A round that a crash left open is used again if it would be opened in the same way now.
        """
        recorder = self._recorder
        recorder.round = iteration.decisions + 1
        if iteration.traces or recorder.turn.open_round is not None:
            await recorder.catch_up()
        is_open = False
        # Other producers may append meanwhile; then the round takes their blocks too.
        while not is_open:
            fresh = recorder.timeline.after(self.view.seq)
            if len(fresh) > RENDERED_INLINE:  # a conversation that was opened just now
                await compute(partial(self.view.extend, fresh))
                self._extend()
            else:
                self.view.extend(fresh)
            self._trace = None
            if iteration.traces:
                self._offering = self._trace_offering
                is_open = await self._open_trace(iteration)
            else:
                open_round = recorder.turn.open_round
                if open_round is not None and self._on_demand:
                    self._meets_demand(self.view.rendering, self._limits.room)
                self._offering = self._offered_tools.current
                reuses = open_round is not None and self._reuses_round(open_round, iteration)
                is_open = reuses or await self._open_round(iteration)
        block = recorder.turn.prompt
        return block is None or block.seq not in recorder.timeline.recalled

    def _reuses_round(self, open_round: tl.RoundStart, iteration: Iteration) -> bool:
        """Use a round that a crash left open, if it would be opened in the same way now; return whether it is used."""
        recorder = self._recorder
        if (
            open_round.tokens > self._limits.room
            or self._has_changed(open_round, iteration)
            or recorder.timeline.inputs_for(recorder.number)
        ):
            return False
        self.tokens = open_round.tokens
        return True

    async def overflow(self, error: ModelOverflow) -> bool:
        """Record a request that was refused as too long; the next request will be shorter.

        Returns True if content must be dropped, and False if a shorter reply may be enough.
        """
        body = learn_overflow(
            self.model,
            error,
            tokens=self.tokens,
            output=self._output,
            before=self._recorder.timeline.overflows.by_model.get(self.model.name),
        )
        await self._recorder.record(body)
        return not body.output

    @property
    def _limits(self) -> RequestLimits:
        """The limits of a request to the model, with the lessons of refused requests."""
        lesson = self._recorder.timeline.overflows.by_model.get(self.model.name)
        if lesson is None:
            return self._limits_without_lesson
        return request_limits(self.model.capabilities, lesson, self._recorder.number)

    async def _open_trace(self, iteration: Iteration) -> bool:
        """Record a round that requests an answer from the trace; return False if other blocks were appended before it."""
        timeline = self._recorder.timeline
        takes = tuple(block.seq for block in timeline.inputs_for(self._recorder.number))
        blocks = prompt.traced_blocks(timeline.blocks, self._recorder.number, takes)
        factor = self.view.state.factor_of(self.model.name)
        fixed = self._offering.fixed + estimate(prompt.TRACE_TAIL)
        affordable = self._quota.room(self.model)
        limit = self._limits.room if affordable is None else min(self._limits.room, affordable)
        room = int(limit / factor) - fixed
        window = prompt.trace_window(blocks, room, self.model.capabilities.attachment_support)
        self._trace = prompt.trace(blocks, window)
        tokens = sum(map(cost, self._trace)) + fixed
        self.tokens = ceil(tokens * factor)
        start = structs.replace(
            self._round_start(iteration, self.answer(traces=True)),
            saw=timeline.seq,
            takes=takes,
            epoch=timeline.last_round.epoch if timeline.last_round else 1,
            stable_sha256=prompt.messages_digest(self._trace),
            tail=prompt.TRACE_TAIL,
            shows="trace",
            file_tokens=sum(map(cost_of_files, self._trace)),
            window=window,
        )
        is_opened = await self._recorder.record_at_head(start)
        self._extend()
        return is_opened

    def make_prompt(self, purpose: RoundPurpose, *, longer: int = 0) -> Prompt:
        """Return the prompt of the open round; its output limit is doubled `longer` times.

        Raises:
            ModelError: the prompt is longer than the model's window allows.
        """
        open_round = self._recorder.turn.open_round
        limits = self._limits
        if self.tokens > limits.room:
            raise ModelError(
                f"the prompt needs about {self.tokens} tokens and {self.model.name} has room for "
                f"{limits.room}: begin another conversation, or use a model with a larger window"
            )
        self._output = limits.reply(self.tokens, longer=longer)
        stable = self.view.rendering.messages
        return Prompt(
            system=self._offering.system,
            tools=self._offering.specs,
            messages=tuple(stable if self._trace is None else self._trace),
            tail=open_round.tail if open_round else "",
            tail_kind=open_round.tail_kind if open_round else "dropped",
            options=self._model_options(calls=purpose == "decision", output_limit=self._output),
            purpose=purpose,
            cache_points=prompt.message_counts(
                open_round.points if open_round else (), len(stable)
            ),
            cache_key=self._cache_key,
        )

    def _model_options(self, *, calls: bool, output_limit: int) -> Options:
        """Return the options of the request; those of a decision are cached for the next decision with the same limit."""
        if not calls or self._trace is not None:
            return self._new_options(calls=calls, output_limit=output_limit)
        options = self._decision_options
        if options is None or options.output_limit != output_limit:
            options = self._new_options(calls=True, output_limit=output_limit)
            self._decision_options = options
        return options

    def _new_options(self, *, calls: bool, output_limit: int) -> Options:
        """Return the options of a request, with the settings that the model supports; `calls` allows tool calls.

        The options of a request with a trace have the native protocol and no stop texts. Without `calls`, a model
        that supports a tool choice is forced to call the answer tool, if the answer has one.
        """
        capabilities = self.model.capabilities
        # A trace is always answered in prose, so the protocol of the decisions does not apply to it.
        protocol_name = self.protocol.name if self._trace is None else prompt.NATIVE
        typed = self.answer(traces=self._trace is not None)
        by_tool = typed is not None and typed.way == "tool"
        options = Options(
            allow_calls=calls,
            protocol=protocol_name,
            force_tool=ANSWER_TOOL if by_tool and not calls and capabilities.tool_choice else "",
            json_form=typed.form if typed else None,
            json_object=protocol_name == "json" and capabilities.json_mode,
            output_limit=output_limit,
            reasoning_effort=self._options.reasoning_effort or "",
            stop=self.protocol.stop if self._trace is None else (),
        )
        return options if self._settings is None else options.with_settings(self._settings)

    def _extend(self) -> None:
        self.view.extend(self._recorder.timeline.after(self.view.seq))

    def _has_changed(self, open_round: tl.RoundStart, iteration: Iteration) -> bool:
        """Return whether the open round would be recorded differently now."""
        is_current = open_round.points and open_round.points[-1].messages == len(self.view.messages)
        now = self._round_start(iteration, self._typed_answer)
        return not is_current or _FIXED_FIELDS(open_round) != _FIXED_FIELDS(now)

    async def _open_round(self, iteration: Iteration) -> bool:
        """Fit the prompt into the window and record the round; False if blocks or offered tools came in between."""
        timeline = self._recorder.timeline
        inputs = timeline.inputs_for(self._recorder.number)
        room = self._limits.room
        factor = self.view.state.factor_of(self.model.name)
        tail_room = prompt.tail_limit(room / factor)
        # The tail depends on the rendering, and the budget asks for the cost of several renderings.
        additions: dict[prompt.Rendering, _Additions] = {}

        def add_to(now: prompt.Rendering) -> _Additions:
            if now not in additions:
                tail = self._tail(iteration, tail_room, now)
                own = now.inputs(inputs)
                additions[now] = _Additions(tail, own, estimate(tail) + own.tokens)
            return additions[now]

        budget = prompt.Budget(
            total=room,
            fixed=self._offering.fixed,
            extra=lambda now: add_to(now).tokens,
            factor=factor,
        )
        window, causes = self.view.rendering.window, list[str]()
        offered = timeline.last_round, self._offering, self.model.capabilities
        if self._is_window_due(is_alike=all(map(is_, offered, self._offered))):
            window, causes = await self._choose_window()
        now = self.view.find_rendering(window)
        self.tokens = budget.cost(now)
        if self._on_demand and self._meets_demand(now, room):
            return False
        if causes == ["prune"] or self.tokens > prompt.TRIGGER * room:
            if await self._recorder.catch_up():  # so that a summary covers the newest blocks too
                return False
            window, causes = await self._compaction.make_room(window, causes, budget)
            inputs = [block for block in inputs if block.seq in timeline.pending]  # else recalled
            additions.clear()
        if self._recorder.turn.overflowed:
            window = structs.replace(window, unbound=self.view.seq)
            causes.append("overflow")
        changed = window is not self.view.window and window != self.view.window
        if causes or not additions:  # then the cost has changed
            now = self.view.find_rendering(window)
            self.tokens = budget.cost(now)
        before = timeline.last_round
        shown = add_to(now)
        start = structs.replace(
            self._round_start(iteration, self._typed_answer),
            takes=tuple(map(attrgetter("seq"), inputs)),
            epoch=(before.epoch if before else 0) + bool(causes),
            opened_by=",".join(causes),
            stable_sha256=now.sha256,
            tail=shown.tail,
            tail_kind=self.model.capabilities.tail,
            tail_room=tail_room,
            file_tokens=now.file_tokens + shown.inputs.file_tokens,
            points=prompt.cache_points(
                now, self._recorder.number, shown.inputs, self._cache_policy(causes, factor)
            ),
            window=window if changed else None,
            tools=self._offering.tools_text
            if self._offering.tools_sha256 not in timeline.known_texts
            else "",
        )
        checkpoints = await compute(partial(self._checkpoints, window.start)) if changed else ()
        if is_opened := await self._recorder.record_at_head(start, *checkpoints):
            self._offered = timeline.last_round, self._offering, self.model.capabilities
        self._extend()
        return is_opened

    @property
    def _compaction(self) -> Compaction:
        """A new compaction for the present model, protocol, view and offered tools."""
        return Compaction(
            runtime=self._runtime,
            model=self.model,
            protocol=self.protocol,
            view=self.view,
            system=self._offering.system,
            specs=self._offering.specs,
        )

    async def _choose_window(self) -> tuple[tl.Projection, list[str]]:
        """Return the window of the round and the causes that open an epoch; a long conversation is rendered in a thread."""
        if len(self._recorder.timeline.blocks) <= RENDERED_INLINE:
            return self._choose()
        return await compute(self._choose)

    def _is_window_due(self, *, is_alike: bool) -> bool:
        """Return whether the window may have to change before the next round.

        `is_alike` is True if this run opened the last round, for the same model and with the same offering.
        """
        hides_more = self.view.state.last_hide > self.view.rendering.window.hides
        if hides_more or self._cache_is_cold():
            return True
        return not is_alike and bool(self._change_causes())

    def _choose(self) -> tuple[tl.Projection, list[str]]:
        """Return the window of the round, and the causes that open an epoch with it; no causes if none opens."""
        window, causes = self.view.window, self._change_causes()
        if causes == ["start"]:
            window = structs.replace(window, result_limit=self._options.result_characters)
        elif causes:
            window = age_window(window, self._runtime)
        if causes:
            window = structs.replace(window, carrying=self.model.capabilities.attachment_support)
        hidden = self.view.state.last_hide
        if hidden > window.hides:
            window = structs.replace(window, hides=hidden)
            causes = [*causes, "hide"]
        if self._cache_is_cold() and not causes:
            pruned = age_window(window, self._runtime)
            if self._is_worth_pruning(pruned):
                window, causes = pruned, ["prune"]
        if causes not in ([], ["start"]):
            # The reasoning so far is only valid with the earlier prompt.
            window = structs.replace(window, unbound=self.view.seq)
        if window != self.view.window:
            # Rendered here because a caller may run this in a thread.
            self.view.render_under(window)
        return window, causes

    def _change_causes(self) -> list[str]:
        """Return the causes by which the beginning of this prompt differs from that of the last round, such as "tools".

        They are empty if the beginning is the same, and "start" alone in the first round. "model" also means that the model
        takes other kinds of files.
        """
        before = self._recorder.timeline.last_round
        if before is None:
            return ["start"]
        support = self.view.window.carrying
        now = self.model.capabilities.attachment_support
        files_differ = support != now and structs.replace(support, tokens=now.tokens) != now
        causes = {
            "model": before.model != self.model.name or files_differ,
            "protocol": before.protocol != self.protocol.name,
            "renderer": before.renderer != prompt.RENDERER,
            "instructions": before.system_sha256 != self._offering.system_sha256,
            "tools": before.tools_sha256 != self._offering.tools_sha256,
            "output": (before.answer_by, before.schema_sha256) != answer_record(self._typed_answer),
        }
        return [cause for cause, applies in causes.items() if applies]

    def _cache_is_cold(self) -> bool:
        """Return whether the provider's cache of the last prompt has expired, or expires in at most 10 s.

        It is False before the first request, and if `cache_ttl_seconds` is 0.
        """
        last = self._recorder.timeline.last_request
        ttl = self._options.cache_ttl_seconds
        if last is None or not ttl:
            return False
        if isinstance(last.body, tl.RoundStart) and last.body.cache_ttl:
            ttl = last.body.cache_ttl  # the time to live was set by that request
        unused = self._clock.now() - last.ts
        return unused.total_seconds() >= ttl - PRUNE_BUFFER_SECONDS

    def _is_worth_pruning(self, pruned: tl.Projection) -> bool:
        """Return whether the window makes the prompt smaller, or moves feedback to its turn."""
        if pruned == self.view.window:
            return False
        smaller = self.view.render_under(pruned).tokens < self.view.rendering.tokens
        return smaller or pruned.feedback > self.view.window.feedback

    def _cache_policy(self, causes: Sequence[str], factor: float) -> prompt.CachePolicy:
        """Return the rules for the cache points of a round; `causes` are those that open an epoch, empty if none does.

        `factor` corrects the token estimates for the model. Without a cause, or with the cause "hide" alone, the messages
        before the first hidden message count as unchanged.
        """
        kept_messages = 0
        if not causes or causes == ["hide"]:
            kept_messages = self.view.state.count_unchanged_messages(self._recorder.number)
        return prompt.CachePolicy(
            fixed=self._offering.fixed,
            factor=factor,
            opens_epoch=bool(causes),
            kept_messages=kept_messages,
            min_rounds=self._options.cache_point_min_rounds,
            offset_rounds=self._options.cache_point_offset_rounds,
        )

    def _round_start(self, iteration: Iteration, answer: TypedAnswer | None) -> tl.RoundStart:
        """Return the body of a round with the fields that do not depend on the messages that it shows."""
        offering = self._offering
        timeline = self._recorder.timeline
        way, schema = answer_record(answer)
        return tl.RoundStart(
            saw=self.view.seq,
            takes=(),
            epoch=1,
            opened_by="",
            protocol=self.protocol.name,
            model=self.model.name,
            renderer=prompt.RENDERER,
            system_sha256=offering.system_sha256,
            tools_sha256=offering.tools_sha256,
            stable_sha256="",
            limit=iteration.limit,
            purpose=iteration.purpose,
            tokens=self.tokens,
            cache_ttl=self._options.cache_ttl_seconds,
            elapsed_ms=self._recorder.elapsed_ms,
            answer_by=way,
            schema_sha256=schema,
            system="" if offering.system_sha256 in timeline.known_texts else offering.system,
            version=2,
            settings=self._recorded_settings,
            dropped_settings=self._dropped_settings,
        )

    def _checkpoints(self, start: int) -> Sequence[tl.Body]:
        """Return a checkpoint with which the conversation can be opened without the blocks before `start`.

        The result is empty if a checkpoint is not possible.
        """
        timeline = self._recorder.timeline
        covers = tl.checkpoint_seq(timeline, start)
        before = timeline.checkpoint
        facts = prompt.RenderState(before.learned)
        for block in timeline.between(before.covers, covers):
            facts.take(block)
        body = tl.checkpoint(timeline, covers, facts.learned) if covers else None
        return [body] if body else []

    def _tail(self, iteration: Iteration, room: int, now: prompt.Rendering) -> str:
        """Return the part of the prompt that changes from round to round; empty if it repeats the last kept tail."""
        recorder = self._recorder
        timeline = recorder.timeline
        stays = self.model.capabilities.tail == "kept"
        seconds = int(recorder.elapsed_seconds)
        running = f", running for {timedelta(seconds=seconds)}" if seconds else ""
        tokens_left = None
        if self._options.max_iterations is None and not stays:  # then tokens limit the rounds
            tokens_left = self._quota.unspent.tokens
        text = prompt.announce(
            iteration=0 if stays and not iteration.has_few_left else iteration.number,
            limit=iteration.limit,
            tokens=None if tokens_left is None else max(tokens_left, 0),
            now=self._local_time(stays=stays),
            turn_id=f"turn_{recorder.number}{'' if stays else running}",
            plans=timeline.plans.open_plans,
            feedback=timeline.reactions.new_lines_since(now.window.feedback),
            unseen=prompt.unseen_sources(timeline.pool.sources, now.named_sources),
            waiting=timeline.prompts_after(recorder.number),
            room=room,
        )
        if self._options.workspace != "off":
            text = f"{text}\n{prompt.workspace_line(timeline, recorder.number)}"
        return "" if stays and text == now.kept_tail else text

    def _local_time(self, *, stays: bool) -> datetime:
        """Return the time in the user's time zone: now, or for a tail that `stays` the time of the turn's prompt."""
        block = self._recorder.turn.prompt
        zone = self._options.time_zone
        now = block.ts if block and stays else self._clock.now()
        return now if zone is None else now.astimezone(ZoneInfo(zone))
