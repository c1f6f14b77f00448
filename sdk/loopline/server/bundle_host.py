"""The open bundles of a server: their conversations, running turns, quotas, recovery and shutdown."""

from __future__ import annotations

import asyncio
import hmac
import logging
import math
from collections import ChainMap, Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from hashlib import sha256
from http import HTTPStatus
from pathlib import Path
from secrets import token_bytes
from typing import Any, Protocol
from urllib.parse import quote, urlencode

from fastapi import FastAPI
from pydantic_core import to_jsonable_python

from loopline import timeline as tl
from loopline.bundle import Bundle, Setting
from loopline.clock import Clock
from loopline.conversations import Conversation, HandedOver, Recovery, Submission
from loopline.errors import BundleError, ConflictError, LooplineError
from loopline.harness import (
    Harness,
    ModelChoice,
    hide_provider_details,
    open_bucket,
    open_turns,
    parse_store_url,
)
from loopline.models import Json, ModelRegistry
from loopline.react import hide_details
from loopline.reader import ConversationReader
from loopline.refs import HostedRef
from loopline.server import request_access
from loopline.server.approvals import ApprovalSigner
from loopline.server.bodies import turn_of
from loopline.server.broadcasts import Broadcasts
from loopline.server.metrics import ServerMetrics
from loopline.server.open_tokens import OpenTokens
from loopline.server.principals import Authenticator, LocalUser, Principal
from loopline.server.problems import RequestProblem, problem_of, unavailable
from loopline.server.quotas import QuotaGate
from loopline.server.read_timelines import ReadTimelines
from loopline.server.settings import SECONDS_BETWEEN, ServerSettings
from loopline.server.token_users import IssuerValues
from loopline.server.webhooks import Webhooks
from loopline.tasks import cancel_all

PATH = "/files"


@dataclass(frozen=True, slots=True, kw_only=True)
class UrlSigner:
    """Signs the URLs of files, which expire after `seconds`. They begin with `base`, the public URL of the app, or are paths."""

    key: bytes = field(repr=False)
    clock: Clock
    seconds: int
    base: str = ""

    def begin(self, path: str) -> str:
        """Return the public URL of a path of the app; without a public URL the path itself."""
        return f"{self.base.rstrip('/')}{path}"

    def turn_url(self, key: tl.ConversationKey, turn_id: str) -> str:
        """Return the public URL of a turn, or an empty text if the app has no public URL."""
        names = "/".join(quote(name, safe="") for name in (key.tenant, key.project, key.name))
        return self.base and self.begin(f"/conversations/{names}/turns/{turn_id}")

    def host_file(self, name: HostedRef, file: tl.FileAdded) -> str:
        """Return the signed URL of a file."""
        del file
        return f"{self.begin(PATH)}?{self.query(name)}"

    def file_url_maker(
        self, conversation: tl.ConversationKey
    ) -> Callable[[str, tl.FileAdded], str]:
        """Return a function that makes the signed URL of a file, from the id of its turn and its body."""

        def url(turn_id: str, file: tl.FileAdded) -> str:
            return self.host_file(tl.hosted_name(conversation, turn_id, file), file)

        return url

    def query(self, name: HostedRef) -> str:
        """Return the query of the URL of a file, with its expiry time and its signature."""
        expires = int(self.clock.now().timestamp()) + self.seconds
        rn = str(name)
        fields = {"rn": rn, "expires": f"{expires}", "signature": self._signature(rn, expires)}
        return urlencode(fields)

    def is_valid(self, rn: str, expires: int, signature: str) -> bool:
        """Return whether this server signed the URL, and it has not expired."""
        expected = self._signature(rn, expires)
        is_signed = hmac.compare_digest(signature, expected)
        return is_signed and expires > self.clock.now().timestamp()

    def _signature(self, rn: str, expires: int) -> str:
        text = f"{expires}\n{rn}".encode(errors="surrogatepass")
        return hmac.new(self.key, text, sha256).hexdigest()


class FileHost(Protocol):
    """A service that gives users files by URLs of its own."""

    def host(
        self, name: str, data: bytes, *, mime: str, disposition: str, valid_for: timedelta
    ) -> str:
        """Store a copy of a file and return a URL that anybody may read for that time. It blocks.

        Raises:
            StoreError: the copy could not be stored.
        """
        ...


BundleSource = str | Path | Bundle[Any]
UNBEGUN = timedelta(days=1)
"""How old messages without a turn may be that a server looks for when it starts."""
WHOLE_BODIES = 4
"""How many bodies of the largest size may be in memory at once."""
COUNT_SECONDS = 5.0
"""How old the numbers of open turns in the metrics may be."""
COUNTED_STATES = ("running", "waiting", "queued", "scheduled", "cut off", "dead", "failed")
CANCEL_SECONDS = 5.0
"""How long a deletion waits for the turns that it has cancelled."""
WAITING_SHARE = 0.75
"""The share of `drain_seconds` in which a server waits for its turns. The rest is for closing."""
_LeftTurns = dict[tl.ConversationKey, dict[str, str]]
_HEADERS = tl.BodyUnion[tl.TurnHeader](tl.TurnHeader)
_QUEUED = tl.BodyUnion[tl.UserPrompt | tl.Schedule](tl.UserPrompt | tl.Schedule)
logger: logging.Logger = logging.getLogger("loopline")
_audit = logging.getLogger("loopline.audit")


class BundleHost:
    """The open bundles of a server over one store."""

    def __init__(
        self,
        sources: Sequence[BundleSource],
        settings: ServerSettings,
        *,
        clock: Clock,
        auth: Authenticator | None,
        store: str | tl.TimelineLog | None,
        model: ModelChoice,
        properties: Mapping[str, Setting] | None,
        blobs: str | None = None,
        relay: str | None = None,
    ) -> None:
        self.auth: Authenticator = auth or LocalUser()
        self.is_local: bool = isinstance(self.auth, LocalUser)
        self.settings: ServerSettings = settings
        self.clock: Clock = clock
        self.metrics: ServerMetrics = ServerMetrics()
        self.rates: request_access.RequestRates = request_access.RequestRates(
            settings.requests_per_minute
        )
        self.listeners: request_access.Listeners = request_access.Listeners(
            settings.listeners, None if self.is_local else settings.user_listeners
        )
        self.tokens: OpenTokens = OpenTokens(self.auth)
        self.body_bytes: request_access.SharedLimit = request_access.body_bytes_limit(
            settings.body_bytes * WHOLE_BODIES, is_shared=not self.is_local
        )
        self.webhooks: Webhooks = Webhooks(settings, clock)
        self.signing_key: bytes = settings.signing_key or token_bytes(32)
        self.urls: UrlSigner = UrlSigner(
            key=self.signing_key,
            clock=clock,
            seconds=settings.url_seconds,
            base=settings.public_url,
        )
        self.approvals: ApprovalSigner = ApprovalSigner(
            self.signing_key, clock, seconds=settings.approval_seconds, required=not self.is_local
        )
        self.timelines: ReadTimelines = ReadTimelines()
        self.login_values: IssuerValues[Json] | None = None
        """The configuration of the login provider."""
        self._sources = sources
        self._store = store
        self._blobs = blobs
        self._relay = relay
        self.file_host: FileHost | None = None
        self._model = model
        self._properties = properties
        self._harnesses: dict[str, Harness[Any]] = {}
        self._running = Counter[tl.ConversationKey]()
        self._sending = Counter[tl.ConversationKey]()
        self._quotas = QuotaGate(settings.quotas, clock, lambda: self.log)
        self._admission = asyncio.Lock()
        self._left_turns: dict[str, _LeftTurns] = {}
        self._watches: set[asyncio.Task[None]] = set()
        self._opening = asyncio.Lock()
        self._counting = asyncio.Lock()
        self._open_turns: tuple[float, Mapping[str, int]] = (-math.inf, {})
        self._closing = AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []
        self.draining: asyncio.Event = asyncio.Event()
        self.broadcasts: Broadcasts = Broadcasts(self.draining, self.urls.file_url_maker)

    async def admit(self, token: str) -> Principal:
        """Authenticate the sender of a request by its token, and count the request against its rate.

        Raises:
            Unauthenticated: the token is missing, wrong or expired.
            RequestProblem: the sender makes too many requests, 429.
        """
        principal = await self.auth.authenticate(token)
        self.rates.check(principal)
        return principal

    async def open(self) -> None:
        """Open every bundle, and start to resume the turns of killed processes. If they are open already, do nothing.

        Raises:
            LooplineError: a bundle cannot be opened, two have the same id, or one runs programs without isolation and
                `isolated_only` is set.
        """
        async with self._opening:
            if self._harnesses:
                return
            async with AsyncExitStack() as stack:
                harnesses: dict[str, Harness[Any]] = {}
                store = self._store
                if store == "memory:":
                    # One log for all bundles, each of which adds its own redactor.
                    store = tl.MemoryLog(self.clock)
                for source in self._sources:
                    harness = await stack.enter_async_context(self._harness(source, store))
                    if harness.bundle.id in harnesses:
                        raise LooplineError(
                            f"two bundles have the id {harness.bundle.id!r}: serve one of them"
                        )
                    if self.settings.isolated_only:
                        harness.check_isolated()
                    harnesses[harness.bundle.id] = harness
                    stack.enter_context(harness.watching_keys(self.tokens.check_now))
                self.file_host = await asyncio.to_thread(self._open_file_host)
                self._harnesses = harnesses
                self._closing = stack.pop_all()
            own = () if self.settings.submits_only else self.harnesses
            recoveries = map(self._recover_bundle, own)
            self._tasks = [asyncio.create_task(work) for work in (self._expire(), *recoveries)]

    def _harness(self, source: BundleSource, store: str | tl.TimelineLog | None) -> Harness[Any]:
        """Return the harness of a source, not yet opened. With authentication, its errors do not show details."""
        return Harness.open(
            source,
            store=store,
            blobs=self._blobs,
            relay=self._relay,
            model=self._model,
            properties=self._properties,
            clock=self.clock,
            caps=self.settings.caps,
            hosting=self.urls.host_file,
            submits_only=self.settings.submits_only,
            metering=self._meter,
            convert_error=None if self.is_local else hide_details,
        )

    def _open_file_host(self) -> FileHost | None:
        """Return the bucket of the store's blobs if its URL says `presigned=yes`; otherwise, or for a log, None."""
        if not isinstance(self._store, str | None):
            return None
        url = parse_store_url(self._store, self._blobs).blobs
        bucket = open_bucket(url, self.clock) if url else None
        return bucket if bucket is not None and bucket.is_presigned else None

    def _meter(
        self, key: tl.ConversationKey, models: ModelRegistry
    ) -> AbstractAsyncContextManager[ModelRegistry]:
        """Meter the models of a run by the quotas; with authentication, their errors have no details of the provider."""
        meter = self._quotas.meter
        return meter(key, models) if self.is_local else hide_provider_details(meter, key, models)

    async def drain(self) -> None:
        """Refuse new turns, end the streams, wait for the running turns, and hand over those that still run.

        It waits at most `WAITING_SHARE` of `drain_seconds`.
        """
        self.draining.set()
        if self._watches:
            seconds = self.settings.drain_seconds * WAITING_SHARE
            await asyncio.wait(self._watches, timeout=seconds)
        await self.hand_over()

    async def hand_over(self) -> None:
        """Leave every running turn unfinished. The next process that serves the store resumes it."""
        self.draining.set()
        await asyncio.gather(*(harness.hand_over() for harness in self.harnesses))

    async def close(self) -> None:
        """Drain, and close every bundle."""
        await self.drain()
        await cancel_all(*self._tasks)
        await self.webhooks.close()
        await self._closing.aclose()
        if self._watches:
            await asyncio.wait(self._watches)
        self._harnesses = {}

    async def _expire(self) -> None:
        """Forget inactive conversations at once, and again `SECONDS_BETWEEN` later."""
        while True:
            await self._attempt(self._forget_expired, "inactive conversations were not forgotten")
            await self._pause(SECONDS_BETWEEN)

    async def _attempt(self, work: Callable[[], Awaitable[None]], failure: str) -> None:
        """Await `work` once. An error is logged together with the text `failure`, and is not raised."""
        try:
            await work()
        except LooplineError as error:
            logger.warning("%s: %s", failure, error)
        except Exception:  # no caller awaits this task, and the next attempt may succeed
            logger.exception("%s", failure)

    async def _forget_expired(self) -> None:
        expired = await self.settings.retention.forget_expired(self.log, self.clock.now())
        await self.finish_forgetting()
        for key in expired:
            self.audit("expire", key)

    async def _pause(self, seconds: float) -> None:
        """Wait for `seconds` of the host's clock."""
        is_due = asyncio.Event()
        alarm = self.clock.alarm(seconds, is_due.set)
        try:
            await is_due.wait()
        finally:
            alarm.cancel()

    async def finish_forgetting(self) -> None:
        """Remove forgotten conversations from the indexes of past turns, and then their remains from the store."""
        forgotten = await self.log.forgetting()
        if forgotten:
            for harness in self.harnesses:
                await harness.memory.remove(forgotten)
            await self.log.finish_forgetting(forgotten)

    async def _recover_bundle(self, harness: Harness[Any]) -> None:
        """Resume the turns of a bundle that a killed process left unfinished, and begin its scheduled messages.

        The first look for them is at the start, and another one after every `recovery_seconds`. It does not wait for the
        turns that earlier looks began; it is left out while these are as many as a server may run.
        """
        # Many turns are resumed at once, so that a user does not wait for the turns of other users.
        slots = asyncio.Semaphore(self.settings.turns)
        since = self.clock.now() - UNBEGUN

        async def resume_turns() -> None:
            """Look once for turns to resume; store reasons for turns that are left if no later look has ended."""
            nonlocal since
            looked_at = self.clock.now()
            left = _LeftTurns()
            await harness.carry_on(
                at_once=slots,
                on_outcome=partial(self._take_recovery, harness.bundle.id, left),
                unbegun_since=since if len(self._harnesses) == 1 else None,
            )
            next_since = looked_at - timedelta(seconds=self.settings.recovery_seconds)
            if next_since >= since:  # no later look has ended before
                self._left_turns[harness.bundle.id] = left
                since = next_since

        failure = f"cut turns of {harness.bundle.id} were not resumed"
        async with asyncio.TaskGroup() as looks:
            while True:
                if not slots.locked():
                    looks.create_task(self._attempt(resume_turns, failure))
                await self._pause(self.settings.recovery_seconds)

    def _take_recovery(self, bundle_id: str, left: _LeftTurns, recovery: Recovery) -> None:
        """Note and log the reason if a turn was not resumed, each reason once; count and log a resumed turn.

        A turn that another bundle of this host runs is ignored.
        """
        key = recovery.conversation
        turn = recovery.turn_id
        if recovery.status in ("skipped", "failed"):
            if recovery.bundle != bundle_id and recovery.bundle in self._harnesses:
                return
            left.setdefault(key, {})[turn] = recovery.reason
            known = self._left_turns.setdefault(bundle_id, {}).setdefault(key, {})
            if known.get(turn) == recovery.reason:
                return
            known[turn] = recovery.reason
        elif recovery.status != "resumed":
            return
        else:
            self.metrics.recovered_turns += 1
        logger.info("%s of %r: %s %s", turn, key.name, recovery.status, recovery.reason)

    async def count_open_turns(self) -> Mapping[str, int]:
        """Return how many turns of the store run, wait or are dead letters, in any process, by state.

        The count is at most `COUNT_SECONDS` old, because it tries the leases of conversations.
        """
        async with self._counting:
            now = self.clock.elapsed()
            counted_at, counts = self._open_turns
            if now - counted_at >= COUNT_SECONDS:
                counts = Counter[str](dict.fromkeys(COUNTED_STATES, 0))
                counts.update(turn.state for turn in await open_turns(self.log))
                self._open_turns = now, counts
            return counts

    @property
    def is_open(self) -> bool:
        """Whether the bundles are open."""
        return bool(self._harnesses)

    @property
    def is_reading(self) -> bool:
        """Whether the host only shows a store: the conversations of all its users, without a bundle to run them."""
        return False

    @property
    def harnesses(self) -> Sequence[Harness[Any]]:
        """The open bundles in their order."""
        return list(self._harnesses.values())

    @property
    def log(self) -> tl.TimelineLog:
        """The log of all conversations."""
        return self.harness("").log

    def harness(self, bundle_id: str) -> Harness[Any]:
        """Return the open bundle of that id, or the first one if the id is empty.

        Raises:
            RequestProblem: no bundle of that id is served, 404.
        """
        harness = self._harnesses.get(bundle_id or next(iter(self._harnesses)))
        if harness is None:
            names = ", ".join(self._harnesses)
            raise RequestProblem(
                HTTPStatus.NOT_FOUND, f"no bundle {bundle_id!r} is served here: {names}"
            )
        return harness

    async def bundle_of(self, key: tl.ConversationKey) -> str:
        """Return the id of the bundle that ran the conversation last, or that its first message waits for; empty without one."""
        blocks = await self.log.read(key, types=["turn.header"], last=1)
        for _, header in _HEADERS.among(blocks):
            return header.bundle
        queued = await self.log.read(key, types=["user.prompt", "user.schedule"])
        senders = [sender for _, body in _QUEUED.among(queued) for sender in _senders_of(body)]
        return next((sender.bundle for sender in senders if sender is not None), "")

    async def conversation(self, key: tl.ConversationKey, bundle_id: str = "") -> Conversation[Any]:
        """Return the conversation with the bundle of `harness_of`.

        Errors are those of `harness_of`.
        """
        harness = await self.harness_of(key, bundle_id)
        return harness.conversation(key.name, user=key.user, tenant=key.tenant, project=key.project)

    async def reader(self, key: tl.ConversationKey) -> ConversationReader:
        """Return the conversation for reading.

        Raises:
            RequestProblem: as for `harness_of`.
        """
        return await self.conversation(key)

    async def harness_of(self, key: tl.ConversationKey, bundle_id: str = "") -> Harness[Any]:
        """Return the bundle of the conversation.

        A new conversation is run by the named bundle, or by the first one if `bundle_id` is empty.

        Raises:
            ConflictError: another bundle than the named one runs the conversation.
            RequestProblem: its bundle is not served here, 404.
        """
        own = await self.bundle_of(key) if len(self._harnesses) > 1 else ""
        if own and bundle_id and own != bundle_id:
            raise ConflictError(
                f"conversation {key.name!r} belongs to the bundle {own!r}: begin another conversation"
            )
        return self.harness(own or bundle_id)

    def watch(self, key: tl.ConversationKey, submission: Submission, webhook: str = "") -> None:
        """Count a submitted turn as running until it ends, count how it ended, and then call the webhook."""
        self._running[key] += 1
        watch = asyncio.create_task(self._await_end(key, submission, webhook))
        self._watches.add(watch)
        watch.add_done_callback(self._watches.discard)

    async def _await_end(
        self, key: tl.ConversationKey, submission: Submission, webhook: str
    ) -> None:
        """Wait for the end of a turn, count its exit reason, and send its webhook.

        Errors of the turn are logged, not raised. A turn that was handed over is not counted, and its webhook is not sent.
        """
        try:
            result: tl.TurnResult[Any] = await submission.result()
            self.metrics.turns[result.exit_reason] += 1
        except HandedOver:
            return  # the turn has not ended, and the next process does not know the webhook
        except asyncio.CancelledError:
            self.metrics.turns["stopped"] += 1
        except Exception as error:  # also raised to the route that awaits the result
            self.metrics.turns["error"] += 1
            if _is_of_client(error):
                logger.info("a turn was refused: %s", error)
            else:
                logger.exception("a turn failed")
        finally:
            self._running -= Counter([key])
        if webhook:
            try:
                await self._send_webhook(webhook, key, submission.receipt.turn)
            except Exception:
                logger.exception("the webhook of turn %d was not sent", submission.receipt.turn)

    async def _send_webhook(self, webhook: str, key: tl.ConversationKey, turn: int) -> None:
        timeline = await tl.reaching(self.log, key, await tl.open_timeline(self.log, key), turn)
        answer = turn_of(key.name, timeline, turn)
        turn_url = self.urls.turn_url(key, answer.turn_id)
        self.webhooks.send(webhook, key, answer.turn_id, to_jsonable_python(answer), turn_url)

    def find_left_turns(self, key: tl.ConversationKey) -> Mapping[str, str]:
        """Return the reasons why no bundle here resumes turns of the conversation, by turn id."""
        return dict(ChainMap(*(left.get(key, {}) for left in self._left_turns.values())))

    async def end_conversation(self, key: tl.ConversationKey) -> None:
        """End the streams of a deleted conversation, and stop its turns here. Wait for them up to `CANCEL_SECONDS`."""
        conversations = [
            harness.conversation(key.name, user=key.user, tenant=key.tenant, project=key.project)
            for harness in self.harnesses
        ]
        with suppress(TimeoutError):
            async with asyncio.timeout(CANCEL_SECONDS):
                await asyncio.gather(*(conversation.stop() for conversation in conversations))
        self.broadcasts.end(key)

    @property
    def running_turns(self) -> int:
        """The number of turns that were sent here and have not ended."""
        return self._running.total()

    @asynccontextmanager
    async def turn_slot(
        self, key: tl.ConversationKey, message_key: str = ""
    ) -> AsyncGenerator[None]:
        """Reserve a slot and a share of the quotas for a turn, until the context ends; inside it, `watch` the turn.

        A message whose key was used before is not sent again, and reserves nothing.

        Raises:
            RequestProblem: the server is full or shuts down, 503; or too little of a quota is left, 429.
            StoreError: the store cannot store messages now.
        """
        async with self._admission:
            if self._quotas.limits:
                is_repeated = message_key and await self.log.appended(key, message_key) is not None
                if not is_repeated:
                    await self._quotas.check(key, self._running + self._sending)
            if self.draining.is_set():
                raise unavailable("the server is shutting down")
            if self.running_turns + self._sending.total() >= self.settings.turns:
                raise unavailable(f"{self.settings.turns} turns run already: try again")
            await self.log.check()
            self._sending[key] += 1
        try:
            yield
        finally:
            self._sending -= Counter([key])

    def audit(self, action: str, key: tl.ConversationKey, **details: str | int) -> None:
        """Write a line to the audit log: the action, the user, the conversation and the details, but no text of the user."""
        suffix = "".join(f" {name}={value!r}" for name, value in details.items())
        _audit.info(
            "%s tenant=%r project=%r user=%r conversation=%r%s",
            *(action, key.tenant, key.project, key.user, key.name, suffix),
        )


def _senders_of(body: tl.UserPrompt | tl.Schedule) -> Sequence[tl.Sender | None]:
    """Return the senders of a message, or of the messages that wait for their time."""
    match body:
        case tl.UserPrompt(sender=sender):
            return [sender]
        case tl.Schedule(messages=messages):
            return [message.prompt.sender for message in messages]


def bundle_host(served: FastAPI) -> BundleHost:
    """Return the host of an app."""
    host = served.state.host
    assert isinstance(host, BundleHost)
    return host


def _is_of_client(error: Exception) -> bool:
    """Return whether an error is answered with a status below 500, and is not a `BundleError`.

    The sender of the message must act on such an error, not the server's operator or the bundle's author.
    """
    if isinstance(error, BundleError) or not isinstance(error, LooplineError):
        return False
    return problem_of(error).status < HTTPStatus.INTERNAL_SERVER_ERROR
