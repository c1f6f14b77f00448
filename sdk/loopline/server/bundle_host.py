"""The bundles that a server has open, which of them runs a conversation, and the turns that run."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from secrets import token_bytes
from typing import Any

from loopline.bundle import Bundle, Setting
from loopline.clock import Clock, SystemClock
from loopline.conversations import Conversation, Recovery, Submission
from loopline.errors import LooplineError
from loopline.harness import Harness, ModelChoice
from loopline.react import TurnResult
from loopline.server.guards import RequestRates
from loopline.server.metrics import ServerMetrics
from loopline.server.principals import Authenticator, LocalUser
from loopline.server.problems import RequestProblem
from loopline.server.settings import ServerSettings
from loopline.timeline import BodyUnion, ConversationKey, TimelineLog, TurnHeader

BundleSource = str | Path | Bundle[Any]
_HEADERS = BodyUnion[TurnHeader](TurnHeader)
logger: logging.Logger = logging.getLogger("loopline")
_audit = logging.getLogger("loopline.audit")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostedBundles:
    """What a server opens: bundles over one store, their model and properties, and its clock."""

    sources: Sequence[BundleSource]
    store: str | TimelineLog | None = None
    model: ModelChoice = None
    properties: Mapping[str, Setting] | None = None
    clock: Clock = field(default_factory=SystemClock)


class BundleHost:
    """The open bundles of a server over one store."""

    def __init__(
        self, hosted: HostedBundles, auth: Authenticator | None, settings: ServerSettings
    ) -> None:
        if not hosted.sources:
            raise LooplineError("a server needs a bundle to serve")
        self.auth: Authenticator = auth or LocalUser()
        self.is_local: bool = isinstance(self.auth, LocalUser)
        self.settings: ServerSettings = settings
        self.clock: Clock = hosted.clock
        self.metrics: ServerMetrics = ServerMetrics()
        self.rates: RequestRates = RequestRates(settings.requests_per_minute)
        self.listeners = 0
        self.signing_key: bytes = settings.signing_key or token_bytes(32)
        self._hosted = hosted
        self._harnesses: dict[str, Harness[Any]] = {}
        self._running = Counter[ConversationKey]()
        self._sending = 0
        self._watches = set[asyncio.Task[None]]()
        self._opening = asyncio.Lock()
        self._closing = AsyncExitStack()
        self._recovery: asyncio.Task[None] | None = None
        self.draining: asyncio.Event = asyncio.Event()

    async def open(self) -> None:
        """Open every bundle, unless they are open, and resume the turns that a killed process left."""
        async with self._opening:
            if self._harnesses:
                return
            async with AsyncExitStack() as stack:
                harnesses = dict[str, Harness[Any]]()
                store = self._hosted.store
                for source in self._hosted.sources:
                    harness = await stack.enter_async_context(self._harness(source, store))
                    if harness.bundle.id in harnesses:
                        raise LooplineError(
                            f"two bundles have the id {harness.bundle.id!r}: serve one of them"
                        )
                    harnesses[harness.bundle.id] = harness
                    # Only a store that is a file can be opened once more.
                    store = harness.log if store == "memory:" else store
                self._harnesses = harnesses
                self._closing = stack.pop_all()
            self._recovery = asyncio.create_task(self._recover())

    def _harness(self, source: BundleSource, store: str | TimelineLog | None) -> Harness[Any]:
        return Harness.open(
            source,
            store=store,
            model=self._hosted.model,
            properties=self._hosted.properties,
            clock=self.clock,
            caps=self.settings.caps,
        )

    async def drain(self) -> None:
        """Take no new turns, end the streams, and wait a limited time for the turns that run."""
        self.draining.set()
        if self._watches:
            await asyncio.wait(self._watches, timeout=self.settings.drain_seconds)

    async def close(self) -> None:
        """Drain, and close every bundle; turns that still run are stopped."""
        await self.drain()
        if self._recovery is not None:
            self._recovery.cancel()
            await asyncio.gather(self._recovery, return_exceptions=True)
        await self._closing.aclose()
        if self._watches:
            await asyncio.wait(self._watches)
        self._harnesses = {}

    async def _recover(self) -> None:
        for harness in list(self._harnesses.values()):
            try:
                await harness.carry_on(on_outcome=self._log_recovery)
            except LooplineError as error:
                logger.warning("cut turns of %s were not resumed: %s", harness.bundle.id, error)

    def _log_recovery(self, recovery: Recovery) -> None:
        key = recovery.conversation
        logger.info("%s of %r: %s", recovery.turn_id, key.name, recovery.status)

    @property
    def is_open(self) -> bool:
        """Return whether the bundles are open."""
        return bool(self._harnesses)

    @property
    def harnesses(self) -> Sequence[Harness[Any]]:
        """The open bundles, in their order."""
        return list(self._harnesses.values())

    @property
    def log(self) -> TimelineLog:
        """The log of all conversations."""
        return self._first.log

    @property
    def _first(self) -> Harness[Any]:
        return next(iter(self._harnesses.values()))

    def harness(self, bundle_id: str) -> Harness[Any]:
        """Return the open bundle of that id.

        Raises:
            RequestProblem: it is not served here.
        """
        harness = self._harnesses.get(bundle_id)
        if harness is None:
            names = ", ".join(self._harnesses)
            raise RequestProblem(
                HTTPStatus.NOT_FOUND, f"no bundle {bundle_id!r} is served here: {names}"
            )
        return harness

    async def bundle_of(self, key: ConversationKey) -> str:
        """Return the id of the bundle that ran the conversation last; empty if none has."""
        blocks = await self.log.read(key, types=["turn.header"], last=1)
        return next((header.bundle for _, header in _HEADERS.among(blocks)), "")

    async def conversation(self, key: ConversationKey, bundle_id: str = "") -> Conversation[Any]:
        """Return the conversation with the bundle that runs it: its own, else the named one, else the first.

        Raises:
            RequestProblem: the conversation belongs to another bundle, or that bundle is not served here.
        """
        own = await self.bundle_of(key) if len(self._harnesses) > 1 else ""
        if own and bundle_id and own != bundle_id:
            raise RequestProblem(
                HTTPStatus.CONFLICT,
                f"conversation {key.name!r} belongs to the bundle {own!r}: begin another one",
            )
        wanted = own or bundle_id
        harness = self.harness(wanted) if wanted else self._first
        return harness.conversation(key.name, user=key.user, tenant=key.tenant, project=key.project)

    def watch(self, key: ConversationKey, submission: Submission) -> None:
        """Keep a submission until its turn has ended, and count how it ended."""
        self._running[key] += 1
        watch = asyncio.create_task(self._await_end(key, submission))
        self._watches.add(watch)
        watch.add_done_callback(self._watches.discard)

    async def _await_end(self, key: ConversationKey, submission: Submission) -> None:
        try:
            result: TurnResult[Any] = await submission.result()
            self.metrics.turns[result.exit_reason] += 1
        except asyncio.CancelledError:
            self.metrics.turns["stopped"] += 1
        except Exception:  # the turn's task has recorded it; who waits for the result gets it too
            self.metrics.turns["error"] += 1
            logger.exception("a turn failed")
        finally:
            self._running[key] -= 1
            if not self._running[key]:
                del self._running[key]

    def is_running(self, key: ConversationKey) -> bool:
        """Return whether a turn of the conversation that was sent here has not ended."""
        return key in self._running

    @property
    def running_turns(self) -> int:
        """Return how many turns were sent here and have not ended."""
        return self._running.total()

    @contextmanager
    def turn_slot(self) -> Generator[None]:
        """Hold a place for a turn that is being sent, until it is watched.

        Raises:
            RequestProblem: the server is full, or is about to end.
        """
        retry = {"Retry-After": "2"}
        if self.draining.is_set():
            raise RequestProblem(
                HTTPStatus.SERVICE_UNAVAILABLE, "the server is about to end", headers=retry
            )
        if self.running_turns + self._sending >= self.settings.turns:
            raise RequestProblem(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"{self.settings.turns} turns run already: try again",
                headers=retry,
            )
        self._sending += 1
        try:
            yield
        finally:
            self._sending -= 1

    def audit(self, action: str, key: ConversationKey, **details: str | int) -> None:
        """Write the line of a change: what was done, by whom and to which conversation, and never its text."""
        facts = "".join(f" {name}={value!r}" for name, value in details.items())
        _audit.info(
            "%s tenant=%r project=%r user=%r conversation=%r%s",
            *(action, key.tenant, key.project, key.user, key.name, facts),
        )
