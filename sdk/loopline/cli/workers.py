"""`loopline worker`, `turns` and `approvals`: run the turns that servers submit, and see the turns of a store and what they wait for."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import shlex
import signal
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import click
from rich.text import Text

from loopline import harness
from loopline.bundle import HostFile
from loopline.cli import parameters
from loopline.cli.bundle_access import PROGRAM, parse_properties, run_options, store_options
from loopline.cli.options import ANSWERED, FAILED, Choices, UsageError, command, misuse
from loopline.cli.terminal import Screen, escape
from loopline.clock import SystemClock
from loopline.conversations import Recovery
from loopline.errors import LooplineError, StoreError
from loopline.models import Json, ModelRegistry
from loopline.react import hide_details
from loopline.tasks import cancel_all
from loopline.timeline import (
    DEFAULT_PROJECT,
    DEFAULT_TENANT,
    ConversationKey,
    TimelineLog,
    iso_time,
)

if TYPE_CHECKING:
    from loopline.server.quotas import QuotaGate

DRAIN_SECONDS = 20.0
PARENT_SECONDS = 0.5
"""How often a worker of a server checks that the server lives."""
RESTART_SECONDS = 1.0
"""How long a server waits before it replaces a worker that has ended."""
KILL_SECONDS = 5.0
"""How much longer than its drain time a worker may take to end."""
_LIMIT = click.IntRange(min=0)
_logger = logging.getLogger("loopline")


@command
@parameters.bundles_argument
@parameters.with_default(
    "--turns",
    type=parameters.COUNT,
    default=harness.WorkerLimits().turns,
    help="The most turns that this worker runs at once.",
)
@click.option(
    "--tenant-turns", type=_LIMIT, default=0, help="The most turns of a tenant, in all workers."
)
@click.option(
    "--user-turns", type=_LIMIT, default=0, help="The most turns of a user, in all workers."
)
@click.option(
    "--bundle-turns", type=_LIMIT, default=0, help="The most turns of a bundle, in all workers."
)
@parameters.with_default(
    "--drain",
    type=click.FloatRange(min=0),
    default=DRAIN_SECONDS,
    metavar="SECONDS",
    help="How long SIGTERM waits for turns before it hands them over.",
)
@parameters.repeated(
    "--quota",
    metavar="NAME=NUMBER",
    help="The most that a user or tenant uses in a day, as for serve.",
)
@parameters.flag("--production", help="Refuse bundles without isolation.")
@parameters.flag(
    "--private-errors", help="Hide the details of errors from users; the log has them."
)
@click.option(
    "--public-url", default="", metavar="URL", help="The address of the server, for URLs of files."
)
@parameters.flag("--of-server", hidden=True)
@parameters.model_options
async def worker(
    choices: Choices,
    screen: Screen,
    bundles: tuple[str, ...],
    turns: int,
    tenant_turns: int,
    user_turns: int,
    bundle_turns: int,
    drain: float,
    quota: tuple[str, ...],
    production: bool,
    private_errors: bool,
    public_url: str,
    of_server: bool,
) -> int:
    """Run the turns of bundles that servers only submit."""
    # The parent is read first, because the server may end while the bundles are opened.
    parent = os.getppid() if of_server else None
    limits = harness.WorkerLimits(
        turns=turns, tenant_turns=tenant_turns, user_turns=user_turns, bundle_turns=bundle_turns
    )

    def show(outcome: Recovery) -> None:
        if outcome.status in ("skipped", "failed"):
            screen.note(
                escape(f"{outcome.turn_id} of {outcome.conversation.name}: {outcome.reason}")
            )

    metering = WorkerMetering(quota, hides_details=private_errors)
    async with harness.open_worker(
        bundles,
        store=choices.store,
        model=choices.model,
        properties=parse_properties(choices),
        worker_limits=limits,
        isolated_only=production,
        on_outcome=show,
        convert_error=hide_details if private_errors else None,
        metering=metering,
        hosting=_file_host(public_url),
    ) as opened:
        metering.log = opened.log
        gc.freeze()  # all modules stay loaded, and a garbage collection over them would delay every turn
        screen.note(f"{escape(', '.join(bundles))}: at most {turns} turns at once")
        await _run_until_signal(opened, drain, parent)
    return ANSWERED


class WorkerMetering:
    """Meters the models of a worker by the quotas of a day, which are summed from its `log`, and hides details of errors."""

    def __init__(self, quotas: Sequence[str], *, hides_details: bool) -> None:
        """Parse the quotas.

        Raises:
            UsageError: they are malformed, or the extra `server` is not installed.
        """
        self.log: TimelineLog | None = None
        self._hides_details = hides_details
        self._gate: QuotaGate | None = None
        if quotas:
            try:
                from loopline.server.quotas import DailyQuotas, QuotaGate
            except ModuleNotFoundError as error:
                raise UsageError(f"--quota: {error}: pip install 'loopline[server]'") from error
            with misuse(LooplineError):
                limits = DailyQuotas.parse(quotas)
            self._gate = QuotaGate(limits, SystemClock(), self._open_log)

    def _open_log(self) -> TimelineLog:
        assert self.log is not None
        return self.log

    def __call__(
        self, conversation: ConversationKey, models: ModelRegistry
    ) -> AbstractAsyncContextManager[ModelRegistry]:
        """Open the models of a run of the conversation, metered."""
        meter = self._meter_nothing if self._gate is None else self._gate.meter
        if self._hides_details:
            return harness.hide_provider_details(meter, conversation, models)
        return meter(conversation, models)

    def _meter_nothing(
        self, _: ConversationKey, models: ModelRegistry
    ) -> AbstractAsyncContextManager[ModelRegistry]:
        return nullcontext(models)


def _file_host(public_url: str) -> HostFile | None:
    """Return the function that makes signed URLs of files; None without a signing key or the extra `server`."""
    key = os.environ.get("LOOPLINE_SIGNING_KEY", "")
    if not key:
        return None
    try:
        from loopline.server.bundle_host import UrlSigner
    except ModuleNotFoundError:
        return None
    from loopline.server import ServerSettings

    settings = ServerSettings(public_url=public_url)
    signer = UrlSigner(
        key=key.encode(), clock=SystemClock(), seconds=settings.url_seconds, base=public_url
    )
    return signer.host_file


async def _run_until_signal(opened: harness.Worker, drain: float, parent: int | None) -> None:
    """Run turns until SIGTERM, Ctrl-C or the end of the process with the id `parent`, if it is not None.

    Then wait up to `drain` seconds for the running turns, and hand over the rest; a second signal hands over at once.
    """
    loop = asyncio.get_running_loop()
    hurry = asyncio.Event()

    def end() -> None:
        if opened.is_stopping:
            hurry.set()
        opened.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    watching = asyncio.create_task(_watch_parent(parent, opened)) if parent else None
    await opened.run()
    draining = asyncio.create_task(opened.drain(drain))
    hurrying = asyncio.create_task(hurry.wait())
    await asyncio.wait([draining, hurrying], return_when=asyncio.FIRST_COMPLETED)
    if not draining.done():
        await opened.drain(0)
    await draining
    hurrying.cancel()
    if watching is not None:
        watching.cancel()


async def _watch_parent(parent: int, opened: harness.Worker) -> None:
    """Stop the worker when its parent process has ended."""
    while True:
        await asyncio.sleep(PARENT_SECONDS)
        if os.getppid() != parent:
            opened.stop()
            return


def worker_arguments(bundles: Sequence[str], choices: Choices, options: Sequence[str]) -> list[str]:
    """Return the arguments of `loopline worker` for a worker of a server; the store is in its environment."""
    return ["worker", *bundles, "--of-server", *options, *run_options(choices)]


@asynccontextmanager
async def worker_processes(
    count: int, arguments: Sequence[str], secrets: Mapping[str, str], drain_seconds: float
) -> AsyncGenerator[None, None]:
    """Keep `count` worker processes running inside the context; then let them drain, and kill those that do not end.

    A process that ends is replaced after RESTART_SECONDS. `secrets` are variables of the environment of the processes,
    because their arguments are shown to all users of the machine.
    """
    environment = {**os.environ, **secrets}
    command_line = [sys.executable, "-m", "loopline", *arguments, "--drain", f"{drain_seconds}"]
    keepers = [
        asyncio.create_task(_keep_running(command_line, environment, drain_seconds))
        for _ in range(count)
    ]
    try:
        yield
    finally:
        await cancel_all(*keepers)


async def _keep_running(
    command_line: Sequence[str], environment: dict[str, str], drain_seconds: float
) -> None:
    """Run a process, and start it again RESTART_SECONDS after it ended or could not start, until this task is cancelled.

    At cancellation the process is terminated, and killed if it still runs `drain_seconds` and KILL_SECONDS later.
    """
    while True:
        try:
            process = await asyncio.create_subprocess_exec(*command_line, env=environment)
        except OSError as error:  # the machine may have too many processes now
            _logger.warning("a worker process cannot be started now: %s", error)
            await asyncio.sleep(RESTART_SECONDS)
            continue
        try:
            await process.wait()
        except asyncio.CancelledError:
            with suppress(ProcessLookupError):
                process.terminate()
            try:
                async with asyncio.timeout(drain_seconds + KILL_SECONDS):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
            raise
        await asyncio.sleep(RESTART_SECONDS)


@command
@click.option("--stop", "stopped", metavar="NAME", help="Stop the turns of this conversation.")
@click.option("--retry", "retried", metavar="NAME", help="Put back the cut turn of this one.")
@click.option(
    "--unschedule",
    "unscheduled",
    metavar="NAME",
    help="Remove the scheduled messages of this one; NAME:ID removes one.",
)
@parameters.report_options
async def turns(
    choices: Choices,
    screen: Screen,
    stopped: str | None,
    retried: str | None,
    unscheduled: str | None,
) -> int:
    """List the turns that run, wait or failed, anywhere.

    The exit code is 1 if the conversation of `--stop`, `--retry` or `--unschedule` has no such turn.

    Raises:
        UsageError: more than one of these options is given.
    """
    chosen = [name for name in (stopped, retried, unscheduled) if name is not None]
    if len(chosen) > 1:
        raise UsageError("--stop, --retry and --unschedule do different things: choose one")
    async with _open_store(choices) as store:
        listed = await harness.open_turns(
            store.log, user=choices.user, project=choices.project, tenant=choices.tenant
        )
        if not chosen:
            _show_turns(listed, choices, screen)
            return ANSWERED
        [name] = chosen
        message_id = ""
        names = {turn.conversation.name for turn in listed}
        if unscheduled is not None and ":" in name and name not in names:
            name, _, message_id = unscheduled.rpartition(":")
        key = _find_conversation(listed, name)
        conversation = store.conversation(
            key.name, user=key.user, project=key.project, tenant=key.tenant
        )
        if retried is not None:
            turn_id = await conversation.retry()
            screen.note(f"{turn_id} of {escape(name)} waits for a worker or a server")
            return ANSWERED
        if unscheduled is not None:
            is_removed = await conversation.unschedule(message_id)
            screen.note(f"{escape(name)}: {'removed' if is_removed else 'no such message'}")
            return ANSWERED if is_removed else FAILED
        is_stopped = await conversation.stop()
        screen.note(f"{escape(name)}: {'stopped' if is_stopped else 'nothing was running'}")
        return ANSWERED if is_stopped else FAILED


def _open_store(choices: Choices) -> harness.Store:
    with misuse(StoreError):
        return harness.Store.open(choices.store)


def _find_conversation(listed: Sequence[harness.OpenTurn], name: str) -> ConversationKey:
    """Return the conversation of that name that has a listed turn.

    Raises:
        LooplineError: no listed turn belongs to that name, or several conversations have it.
    """
    keys = {turn.conversation for turn in listed if turn.conversation.name == name}
    if len(keys) > 1:
        owners = ", ".join(sorted(f"{key.tenant}/{key.project}/{key.user}" for key in keys))
        raise LooplineError(
            f"{name!r} is a conversation of several owners ({owners}): add --user, --project or --tenant"
        )
    if not keys:
        raise LooplineError(f"no turn of {name!r} runs, waits or failed")
    return keys.pop()


def _show_turns(listed: Sequence[harness.OpenTurn], choices: Choices, screen: Screen) -> None:
    """Print the turns to stdout, one on each line, or as a JSON list; without turns print a sentence."""
    if choices.as_json:
        rows: list[Json] = [
            {
                "tenant": turn.conversation.tenant,
                "project": turn.conversation.project,
                "user": turn.conversation.user,
                "conversation": turn.conversation.name,
                "turn_id": turn.turn_id,
                "state": turn.state,
                "since": iso_time(turn.since),
                "rounds": turn.rounds,
                "reason": turn.reason,
            }
            for turn in listed
        ]
        screen.write_json(rows)
        return
    if not listed:
        screen.print(Text("no turn runs, waits or failed"))
    for turn in listed:
        where = f"{turn.conversation.name} ({turn.conversation.user})"
        line = f"{turn.state:9} {iso_time(turn.since)} {turn.turn_id} of {where}"
        screen.print(Text(escape(f"{line}: {turn.reason}" if turn.reason else line)))


@command
@parameters.report_options
async def approvals(choices: Choices, screen: Screen) -> int:
    """List the calls that wait for approval, anywhere."""
    async with _open_store(choices) as store:
        waiting = await harness.waiting_approvals(
            store.log, user=choices.user, project=choices.project, tenant=choices.tenant
        )
    if choices.as_json:
        screen.write_json([approval.document for approval in waiting])
        return ANSWERED
    if not waiting:
        screen.note("no call waits for approval")
    for approval in waiting:
        key, call = approval.conversation, approval.call
        people = f" ({len(call.approved_by)} of {call.people})" if call.people > 1 else ""
        is_default = (key.tenant, key.project) == (DEFAULT_TENANT, DEFAULT_PROJECT)
        owner = key.user if is_default else f"{key.tenant}/{key.project}/{key.user}"
        where = f"{iso_time(approval.since)} {call.call_id} of {key.name} ({owner})"
        screen.print(Text(escape(f"{where}: {call.question}{people}")))
        if call.stays_open or is_default:  # `loopline run` has only the default project
            screen.note_command(_answer_line(approval, choices))
    return ANSWERED


def _answer_line(approval: harness.WaitingApproval, choices: Choices) -> str:
    """Return the shell command that approves the call; for a paused turn it has the placeholder `BUNDLE`."""
    key, call = approval.conversation, approval.call
    where = ["-c", key.name, *store_options(replace(choices, user=key.user))]
    by = ["--by", "NAME"] if call.approved_by else []
    if call.stays_open:
        if key.project != DEFAULT_PROJECT:
            where += ["--project", key.project]
        if key.tenant != DEFAULT_TENANT:
            where += ["--tenant", key.tenant]
        return shlex.join([PROGRAM, "answer", call.call_id, "yes", *by, *where])
    return shlex.join([PROGRAM, "run", "BUNDLE", "--answer", f"{call.call_id}=yes", *by, *where])
