"""Which programs run where: the properties say so, and nothing runs with less isolation than was asked for."""

from __future__ import annotations

import pytest

from loopline import Bundle, Harness, PropertyError
from loopline.adapters.execution.process import BubblewrapSandbox
from loopline.harness import execution_features
from loopline.models import Json
from loopline.sandbox import Execution, ServedCall, Session
from loopline.testing import FakeClock, ScriptedModel


async def offered(**execution: Json) -> list[str]:
    """The tools for programs that a bundle with these properties offers."""
    configuration: dict[str, Json] = {"execution": execution} if execution else {}
    bundle = Bundle(id="shop", configuration=configuration)
    model = ScriptedModel(["Done."])
    async with Harness.open(bundle, store="memory:", model=model, clock=FakeClock()) as harness:
        await harness.conversation("c").say("go")
    names = [tool.name for tool in model.requests[0].tools]
    return [name for name in names if name.startswith("exec.")]


async def test_programs_run_only_where_the_section_is_written() -> None:
    assert await offered() == []
    assert await offered(runtime={"mode": "process"}) == ["exec.python"]
    assert await offered(shell=True) == ["exec.python", "exec.shell"]
    assert await offered(runtime={"enabled": False}) == []
    profiles: Json = {"off": {"enabled": False}, "own": {"mode": "process"}}
    assert await offered(runtime={"default_profile": "off", "profiles": profiles}) == []
    assert await offered(runtime={"default_profile": "own", "profiles": profiles}) == [
        "exec.python"
    ]


@pytest.mark.parametrize(
    ("execution", "problem"),
    [
        ({"runtime": {"mode": "local"}}, "isolates nothing"),
        ({"runtime": {"mode": "none"}}, "write one of"),
        ({"runtime": {"default_profile": "x"}}, "default_profile"),
        ({"effect": "meta"}, "execution.effect"),
        ({"limits": {"calls": 0}}, "execution.limits.calls"),
        ({"approval_wait_s": -1.0}, "approval_wait_s"),
        ({"tools": "shop.*"}, "list of patterns"),
    ],
)
async def test_a_wrong_property_is_refused(execution: dict[str, Json], problem: str) -> None:
    with pytest.raises(PropertyError, match=problem):
        await offered(**execution)


async def test_a_program_does_not_run_where_it_cannot_be_isolated() -> None:
    async def serve(tool: str, arguments: object) -> ServedCall:
        raise AssertionError(f"{tool} was called with {arguments}")

    output = list[str]()
    sandbox = BubblewrapSandbox("/usr/bin/no-such-python")
    execution = Execution(execution_id="e", turn_id="turn_1", program="print('it ran')")
    end = await sandbox.run(execution, Session(serve=serve, on_output=output.append))
    await sandbox.close()
    assert end.failure is not None
    assert (end.failure.where, end.failure.code) == ("sandbox", "isolation_unavailable")
    assert (output, end.user_out) == ([], "")


async def test_each_backend_says_what_it_needs() -> None:
    features = await execution_features()
    names = [feature.name for feature in features["process"]]
    assert {"bubblewrap", "seccomp", "landlock", "cgroup"} <= set(names)
    assert all(feature.detail for feature in features["process"])
