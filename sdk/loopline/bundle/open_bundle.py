"""An open bundle: it prepares the runs of turns, and runs the hooks and the workflow of the bundle."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from typing import Any, cast, get_args, get_origin

from msgspec import structs

from loopline.bundle.importer import blame, is_raised_inside
from loopline.bundle.load import LoadedBundle
from loopline.bundle.loop import as_async
from loopline.bundle.prepared_run import PreparedRun, Services, SpawnRun, commits_of
from loopline.bundle.workflow import BaseWorkflow
from loopline.errors import BundleError, KnowledgeError, LooplineError, StepFailed
from loopline.events import EventSink
from loopline.models import Model, ModelRegistry
from loopline.react import DEFAULT_OPTIONS, Limits, TurnPayload
from loopline.react import result as paused_result
from loopline.reader import ConversationLookup, ConversationView
from loopline.timeline import Completion, Notice, Recorder, Turn, TurnResult, UserPrompt
from loopline.tools import AskUser, deps_problem

_loaded: set[object] = set()
_loading: dict[object, asyncio.Lock] = {}


async def call_load_hook(loaded: LoadedBundle) -> None:
    """Call `on_bundle_load` of the workflow class and of the bundle, each once per process. After a failure the next call tries again.

    Raises:
        BundleError: a hook failed; the message names file and line.
    """
    workflow = loaded.bundle.workflow
    await _call_once(workflow, workflow.on_bundle_load, loaded)
    hook = loaded.bundle.on_bundle_load
    if hook is not None:
        await _call_once(hook, as_async(hook), loaded)


async def _call_once(
    key: object, hook: Callable[[], Awaitable[None]], loaded: LoadedBundle
) -> None:
    """Await the hook if no hook with this `key` has succeeded in the process; simultaneous calls wait in turn.

    Raises:
        BundleError: the hook failed; the message names file and line, and the next call tries again.
    """
    async with _loading.setdefault(key, asyncio.Lock()):
        if key in _loaded:
            return
        try:
            await hook()
        except (Exception, SystemExit) as error:
            raise blame(error, loaded.folder) from error
        _loaded.add(key)
    # Later calls find the key in `_loaded` and do not need this lock.
    _loading.pop(key, None)


async def make_deps(loaded: LoadedBundle, stack: AsyncExitStack) -> object:
    """Call the factory of dependencies; return None if the bundle has none.

    If the factory returns an async context manager, it is entered, and `stack` closes it.

    Raises:
        BundleError: the factory failed; the message names file and line.
    """
    if loaded.bundle.deps is None:
        return None
    try:
        deps = loaded.bundle.deps()
        if inspect.isawaitable(deps):
            deps = cast("object", await deps)
        if isinstance(deps, AbstractAsyncContextManager):
            manager = cast("AbstractAsyncContextManager[object]", deps)
            deps = await stack.enter_async_context(manager)
    except (Exception, SystemExit) as error:
        raise blame(error, loaded.folder) from error
    return deps


@dataclass(frozen=True, slots=True)
class OpenBundle:
    """A loaded bundle and the services for its runs."""

    loaded: LoadedBundle
    services: Services

    async def prepare(
        self,
        *,
        payload: TurnPayload,
        recorder: Recorder,
        sink: EventSink,
        limits: Limits,
        models: ModelRegistry,
        model: Model | str | None,
        conversation: ConversationView,
        lookup: ConversationLookup,
        spawn: SpawnRun,
        instructions: str = "",
    ) -> PreparedRun:
        """Prepare a run: update the knowledge space, and set the header of the turn in the recorder.

        The header names `model` until a workflow builds a loop. `instructions` replace those of the loop if not empty.
        If updating the knowledge space fails, a notice is recorded and the old index is used. A resumed turn keeps its
        header with a new version and number of recoveries; if this process took the turn over, that is recorded at once.
        """
        services = self.services
        space = services.knowledge
        header = recorder.turn.header
        stale = await self._update_knowledge()
        run = PreparedRun(
            services=services,
            payload=payload,
            recorder=recorder,
            sink=sink,
            limits=limits,
            models=models,
            conversation=conversation,
            lookup=lookup,
            spawn=spawn,
            began=recorder.turn.started_at or services.clock.now(),
            recoveries=_recoveries(recorder.turn, adopted=recorder.adopted),
            commits=() if space is None else commits_of(space),
            instructions=instructions,
        )
        if header is None:
            recorder.header = run.header(models.chain(model), DEFAULT_OPTIONS.with_limits(limits))
            recorder.foreword = stale
        else:
            recorder.header = structs.replace(
                header,
                recoveries=run.recoveries,
                version=services.sender.version,
                handed_over=False,
            )
            if stale:
                await recorder.record(*stale)
        if recorder.adopted:  # counts this attempt, also if it kills the process
            await recorder.record()
        return run

    async def _update_knowledge(self) -> list[Notice]:
        """Update the knowledge space; return a notice if that fails and the old index is used."""
        services = self.services
        if services.knowledge is None:
            return []
        try:
            await services.knowledge.ensure(services.on_build)
        except KnowledgeError as error:
            state = services.knowledge.state
            states = state.repositories or {"": state}
            commits = ", ".join(each.short_commit for each in states.values())
            shown = services.convert_error(error)
            text = f"The knowledge space stays as it was at {commits}: {shown}"
            return [Notice(code="knowledge_stale", text=text)]
        return []

    async def run(self, run: PreparedRun) -> TurnResult[Any]:
        """Create a workflow instance, run its hooks and `process`, and return the result of the turn.

        The hooks after the run are skipped for a paused turn. If an agent asks the user, the result is that of a paused turn.

        Raises:
            BundleError: the code of the bundle failed, or `process` returned another result than the recorded answer;
                the message names file and line.
            LooplineError: code of Loopline failed.
        """
        loaded = self.loaded
        try:
            _check_deps(loaded, self.services.deps)
            bundle = loaded.bundle
            workflow = bundle.workflow(run)
            await workflow.pre_run_hook(run.payload)
            if bundle.pre_run_hook is not None:
                await as_async(bundle.pre_run_hook)(workflow, run.payload)
            running: object = workflow.process(run.payload)
            if not inspect.isawaitable(running):
                raise process_error(bundle.workflow, "must be `async def`")
            result: TurnResult[Any] = await running
            _check_result(result, loaded, run.recorder.turn.completion)
            if result.exit_reason != "paused":
                await workflow.post_run_hook(run.payload, result)
                if bundle.post_run_hook is not None:
                    await as_async(bundle.post_run_hook)(workflow, run.payload, result)
                await _record_reflection(run, result)
        except AskUser:  # an agent that the workflow runs
            return paused_result(run.recorder.timeline, run.recorder.number, "paused")
        except BundleError:
            raise
        except LooplineError as error:
            if isinstance(error, StepFailed) or is_raised_inside(error, loaded.folder):
                raise blame(error, loaded.folder) from error
            raise
        except (Exception, SystemExit) as error:
            raise blame(error, loaded.folder) from error
        return result


async def _record_reflection(run: PreparedRun, result: TurnResult[Any]) -> None:
    """Record a request for a lesson if the turn failed and the quality options ask for such lessons."""
    header = run.recorder.turn.header
    quality = run.services.quality_of(header.preset if header else "")
    if not quality.quality.own_turns or quality.reflexion is None:
        return
    due = quality.reflexion.review_turn(run.payload.text, result)
    if due is not None:
        await run.recorder.record(due)


def _recoveries(turn: Turn, *, adopted: bool) -> int:
    """Return how often the turn was resumed automatically after its process stopped; with `adopted`, this time counts.

    The first start of a message that was sent to be run by any process does not count.
    """
    header = turn.header
    if header is None:
        prompt = turn.prompt.body if turn.prompt else None
        sender = prompt.sender if isinstance(prompt, UserPrompt) else None
        return int(adopted and (sender is None or sender.harness > 0))
    return header.recoveries + (adopted and not header.handed_over)


def _check_deps(loaded: LoadedBundle, deps: object) -> None:
    """Raise a BundleError if the workflow derives from `BaseWorkflow[X]` and the dependencies are not of the type X."""
    workflow = loaded.bundle.workflow
    for base in (
        base for kind in workflow.__mro__ for base in vars(kind).get("__orig_bases__", ())
    ):
        for deps_type in get_args(base) if get_origin(base) is BaseWorkflow else ():
            if wrong := deps_problem(deps, deps_type):
                raise BundleError(f"{loaded.folder}: the workflow {workflow.__name__} {wrong}")


def _check_result(result: object, loaded: LoadedBundle, answer: Completion | None) -> None:
    """Raise a BundleError if the value is not a TurnResult, or lacks the recorded `answer` ("" if None)."""
    recorded = answer.text if answer is not None else ""
    if inspect.iscoroutine(result):
        result.close()
        raise process_error(loaded.bundle.workflow, "returned a coroutine: is `await` missing?")
    if not isinstance(result, TurnResult) or result.answer != recorded:
        raise process_error(
            loaded.bundle.workflow,
            f"returned {result!r}: return the last result of await react.run(payload) or await self.answer(…)",
        )


def process_error(workflow: type[BaseWorkflow[Any]], problem: str) -> BundleError:
    """Return an error about the method `process` of a workflow class, with its file and line."""
    code = inspect.unwrap(workflow.process).__code__
    return BundleError(
        f"{code.co_filename}:{code.co_firstlineno}: {workflow.__name__}.process {problem}"
    )
