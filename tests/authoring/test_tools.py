"""A typed function is a tool: what the model sees of it, and what comes of a call."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass
from datetime import date
from enum import Enum
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import pytest
from pydantic import AfterValidator, BaseModel, Field

from loopline import BundleError, Output, Source, ToolContext, ToolError, tool
from loopline.bundle.importer import import_path
from loopline.models import Json, JsonObject
from loopline.tools import Outcome, ToolFunction
from tests.authoring.bundle_files import a_call, a_context, line_of, write

HERE = Path(__file__)


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Filter(BaseModel):
    tags: list[str] = []


@dataclass
class Found:
    name: str
    day: date


@tool(effect="read")
def find(
    name: str,
    limit: Annotated[int, Field(ge=1, le=50, description="how many")] = 5,
    colour: Colour = Colour.RED,
    since: date | None = None,
    wanted: Filter | None = None,
) -> str:
    """Find things by name.

    Names may be parts of names.
    """
    return repr((name, limit, colour, since, wanted))


@tool(effect="write", key="file:{path}:{limit}")
def save(path: str, limit: int = 3) -> None:
    """Save it."""


@tool
async def whose(context: ToolContext, greeting: str = "Hello") -> str:
    """Say whose call it is."""
    await asyncio.sleep(0)
    return f"{greeting} {context.user} {context.call_id}"


@tool(effect="read")
def perhaps(name: str, context: ToolContext | None = None) -> str:
    """Say whether there is a context."""
    return f"{name}: {context is not None}"


@tool
def strange(json: int, _x: int, copy: int, model_dump: int, p0_json: int = 0) -> int:
    """Take parameters with names that mean something elsewhere."""
    return json + _x + copy + model_dump + p0_json


async def run(function: ToolFunction[..., Any], arguments: JsonObject) -> Outcome:
    return await function.bind("shop").run(arguments, a_call())


async def text_of(function: ToolFunction[..., Any], **arguments: Json) -> str:
    return (await run(function, arguments)).text


def returning(value: object) -> ToolFunction[[], object]:
    @tool(effect="read")
    def give() -> object:
        """Give it."""
        return value

    return give


def properties(function: ToolFunction[..., Any]) -> JsonObject:
    return cast("JsonObject", function.bind("shop").spec.parameters["properties"])


def complaint(function: ToolFunction[..., Any], arguments: JsonObject) -> str:
    with pytest.raises(ToolError) as raised:
        function.bind("shop").check(arguments)
    return str(raised.value)


def test_a_tool_is_still_called_like_the_function() -> None:
    assert find("tea", limit=2) == "('tea', 2, <Colour.RED: 'red'>, None, None)"
    assert asyncio.run(whose(a_context())) == "Hello ann c1"


def test_a_tool_keeps_the_functions_name_docstring_and_signature() -> None:
    assert vars(find)["__name__"] == "find"
    assert inspect.getdoc(find) == find.description
    assert next(iter(inspect.signature(find).parameters)) == "name"


def test_a_tool_that_says_nothing_of_its_effect_is_exclusive() -> None:
    assert whose.effect == "exclusive"
    assert find.bind("shop").effect == "read"


def test_the_model_sees_the_name_the_docstring_and_a_schema() -> None:
    spec = find.bind("shop").spec
    assert spec.name == "shop.find"
    assert spec.description == "Find things by name.\n\nNames may be parts of names."
    assert spec.parameters["type"] == "object"
    assert spec.parameters["required"] == ["name"]
    assert spec.parameters["additionalProperties"] is False


def test_the_schema_says_what_annotations_and_defaults_say() -> None:
    assert properties(find)["name"] == {"type": "string"}
    assert properties(find)["limit"] == {
        "default": 5,
        "description": "how many",
        "maximum": 50,
        "minimum": 1,
        "type": "integer",
    }


def test_a_context_is_filled_in_and_not_in_the_schema() -> None:
    assert list(properties(whose)) == ["greeting"]
    assert list(properties(perhaps)) == ["name"]
    assert asyncio.run(text_of(whose, greeting="Hi")) == "Hi ann c1"
    assert asyncio.run(text_of(perhaps, name="a")) == "a: True"


def test_a_context_cannot_be_given_by_the_model() -> None:
    assert "'context' is not a parameter" in complaint(whose, {"context": {}})


def test_parameters_may_have_any_name() -> None:
    arguments: JsonObject = {"json": 1, "_x": 2, "copy": 4, "model_dump": 8}
    assert list(properties(strange)) == ["json", "_x", "copy", "model_dump", "p0_json"]
    assert asyncio.run(run(strange, arguments)).text == "15"


def test_a_default_that_is_no_json_stays_the_functions_own() -> None:
    missing = object()

    @tool(effect="read")
    def same(value: Any = missing) -> bool:
        """Say whether it is the default."""
        return value is missing

    assert asyncio.run(text_of(same)) == "true"
    assert properties(same)["value"] == {}


def test_values_reach_the_function_as_its_types() -> None:
    arguments: JsonObject = {
        "name": "tea",
        "limit": "7",
        "colour": "blue",
        "since": "2024-02-29",
        "wanted": {"tags": ["x"]},
    }
    expected = ("tea", 7, Colour.BLUE, date(2024, 2, 29), Filter(tags=["x"]))
    assert asyncio.run(run(find, arguments)).text == repr(expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "shop.find: 'name' is missing"),
        ({"name": "a", "limt": 3}, "'limt' is not a parameter, nearest is 'limit'"),
        ({"name": 3}, "'name': Input should be a valid string, got 3"),
        ({"name": "a", "limit": 0}, "'limit': Input should be greater than or equal to 1, got 0"),
        ({"name": "a", "wanted": {"tags": ["x", 1]}}, "'wanted.tags.1': Input should be a valid"),
        ({"name": "a", "colour": "green"}, "'colour': Input should be 'red' or 'blue'"),
    ],
)
def test_a_bad_argument_is_named(arguments: JsonObject, message: str) -> None:
    assert message in complaint(find, arguments)


def even(number: int) -> int:
    if number % 2:
        raise ValueError("it must be even")
    return number


@tool(effect="read")
def halve(number: Annotated[int, AfterValidator(even)]) -> int:
    """Halve an even number."""
    return number // 2


def test_what_a_validator_of_the_author_says_is_said_as_it_is() -> None:
    assert complaint(halve, {"number": 3}) == "shop.halve: 'number': it must be even, got 3"


def test_every_bad_argument_is_named() -> None:
    message = complaint(find, {"limit": 0, "nam": 1})
    assert "'name' is missing" in message
    assert "'limit'" in message
    assert "nearest is 'name'" in message


def test_bad_arguments_do_not_run_the_function() -> None:
    with pytest.raises(ToolError, match="'name' is missing"):
        asyncio.run(run(find, {}))


def test_good_arguments_pass() -> None:
    find.bind("shop").check({"name": "a"})


def test_a_key_is_filled_in_with_the_arguments_and_defaults() -> None:
    assert save.bind("io").key({"path": "a/b"}) == "file:a/b:3"
    assert save.bind("io").key({"path": "a/b", "limit": "4"}) == "file:a/b:4"


def test_calls_of_a_tool_without_a_key_share_one() -> None:
    @tool(effect="write")
    def put(name: str) -> None:
        """Put it."""

    assert put.bind("io").key({"name": "a"}) == put.bind("io").key({"name": "b"}) == "io.put"


def test_a_sync_function_runs_in_a_thread() -> None:
    @tool(effect="read")
    def thread() -> bool:
        """Say whether this is the main thread."""
        return threading.current_thread() is threading.main_thread()

    assert asyncio.run(text_of(thread)) == "false"


def test_an_awaitable_is_awaited_whoever_returns_it() -> None:
    async def later() -> str:
        await asyncio.sleep(0)
        return "later"

    @tool(effect="read")
    def soon() -> Awaitable[str]:
        """Give it later."""
        return later()

    assert asyncio.run(text_of(soon)) == "later"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is\n", "as it is\n"),
        (None, "done"),
        (3, "3"),
        ({"ü": [1, None]}, '{"ü":[1,null]}'),
        (Found("tea", date(2024, 2, 29)), '{"name":"tea","day":"2024-02-29"}'),
        (Filter(tags=["x"]), '{"tags":["x"]}'),
        ([Colour.RED, Path("a/b")], '["red","a/b"]'),
        (float("inf"), '"inf"'),
        ("lone \ud800", "lone \\ud800"),
        ({"\ud800": "\udfff"}, '{"\\\\ud800":"\\\\udfff"}'),
    ],
)
def test_what_a_function_returns_becomes_text(value: object, text: str) -> None:
    assert asyncio.run(text_of(returning(value))) == text


def test_an_output_brings_sources_and_an_artifact() -> None:
    source = Source(url="https://example.org/a", title="A \ud800")
    found = returning(Output("one page", sources=[source], artifact={"day": [1, 2]}))
    outcome = asyncio.run(run(found, {}))
    assert outcome.text == "one page"
    assert outcome.sources == (Source(url="https://example.org/a", title="A \\ud800"),)
    assert outcome.artifact == {"day": [1, 2]}


def circular() -> list[object]:
    values: list[object] = []
    values.append(values)
    return values


@pytest.mark.parametrize(
    "value",
    [
        object(),
        circular(),
        Output("x", sources=cast("list[Source]", ["https://example.org"])),
        Output("x", artifact=cast("Json", object())),
    ],
)
def test_a_value_that_cannot_be_text_is_the_authors_to_change(value: object) -> None:
    give = returning(value)
    with pytest.raises(ToolError) as raised:
        asyncio.run(run(give, {}))
    assert str(raised.value).startswith("shop.give returned a value that is not allowed")
    assert give.location not in str(raised.value)  # users read the results of calls too
    [note] = raised.value.__notes__
    assert note.endswith(give.location)


def test_a_refusal_reaches_the_model_as_it_is() -> None:
    @tool(effect="read")
    def refuse() -> str:
        """Refuse."""
        raise ToolError("not today")

    with pytest.raises(ToolError, match=r"^not today$"):
        asyncio.run(run(refuse, {}))


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("broken"), "ValueError: broken"),
        (KeyError("x"), "KeyError: 'x'"),
        (ZeroDivisionError(), "ZeroDivisionError"),
        (SystemExit(3), "SystemExit: 3"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (StopIteration(), "RuntimeError: StopIteration"),
    ],
)
def test_a_failure_is_told_by_its_type_and_message(error: BaseException, message: str) -> None:
    @tool(effect="read")
    def fail() -> str:
        """Fail."""
        raise error

    with pytest.raises(ToolError) as raised:
        asyncio.run(run(fail, {}))
    assert str(raised.value) == message
    assert raised.value.__cause__ is not None
    assert raised.value.__notes__ == [f"shop.fail failed at {line_of(HERE, 'raise ' + 'error')}"]


def test_a_failing_validator_is_a_failure_of_the_tool() -> None:
    assert complaint(fragile, {"name": {"value": 1}}) == "RuntimeError: fragile"


class Fragile(BaseModel):
    value: int

    def model_post_init(self, _: object) -> None:
        raise RuntimeError("fragile")


@tool
def fragile(name: Fragile) -> str:
    """Take what cannot be made."""
    return str(name)


def undocumented(name: str) -> str:
    return name


def numbered() -> Iterator[int]:
    """Count."""
    yield 1


def anything(*names: str, **more: str) -> str:
    """Take anything."""
    return f"{names} {more}"


def unnamed(name: str, /) -> str:
    """Take it by its place."""
    return name


def named(name: str) -> str:
    """Take it by name."""
    return name


def test_an_unknown_effect_is_refused() -> None:
    with pytest.raises(BundleError) as raised:
        tool(effect=cast("Literal['read']", "reed"))(named)
    assert str(raised.value).startswith(line_of(HERE, "def named("))
    assert "the effect 'reed', nearest is 'read'" in str(raised.value)


@pytest.mark.parametrize(
    ("key", "effect", "message"),
    [
        ("file:{path}", "write", r"no parameter 'path': its parameters are \['name'\]"),
        ("file:{name.x}", "write", "no parameter 'name.x'"),
        ("file:{}", "write", "no parameter ''"),
        ("file:{name", "write", "which is not a template"),
        ("file:{name}", "read", 'a key goes with effect="write" or "meta"'),
    ],
)
def test_a_key_names_parameters_of_a_writing_tool(
    key: str, effect: Literal["read", "write"], message: str
) -> None:
    with pytest.raises(BundleError, match=message):
        tool(effect=effect, key=key)(named)


def test_a_key_cannot_name_the_context() -> None:
    @tool(effect="write", key="{context}")
    def put(context: ToolContext) -> None:
        """Put it."""

    with pytest.raises(BundleError, match="the key of 'put' names 'context'"):
        _ = put.bind("io").spec


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (undocumented, "has no docstring"),
        (numbered, "is a generator"),
        (anything, r"takes '\*names', but"),
        (unnamed, "takes 'name'"),
        (eval("lambda name: name"), "has no docstring"),
        (len, "@tool is for functions written with def"),
        (Colour, "@tool is for functions written with def"),
    ],
)
def test_a_function_that_cannot_be_a_tool_is_refused(function: Any, message: str) -> None:
    with pytest.raises(BundleError, match=message):
        tool(function)


def test_a_parameter_without_a_type_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "tools.py"
    file.write_text('from loopline import tool\n\n\n@tool\ndef f(x):\n    """Take it."""\n')
    with pytest.raises(BundleError) as raised:
        import_path(file)
    assert str(raised.value).startswith(f"{file.resolve()}:4: tool 'f' has no type for 'x'")


def test_a_wrong_decoration_names_file_and_line() -> None:
    with pytest.raises(BundleError) as raised:
        tool(undocumented)
    assert str(raised.value).startswith(line_of(HERE, "def undocumented("))


@pytest.mark.parametrize(
    ("annotation", "message"),
    [
        ("Missing", "name 'Missing' is not defined"),
        ("threading.Lock", "Unable to generate pydantic-core schema"),
        ("Callable[[], int]", "Cannot generate a JsonSchema"),
    ],
)
def test_an_annotation_that_cannot_be_used_is_blamed_on_the_function(
    tmp_path: Path, annotation: str, message: str
) -> None:
    text = f"""
        from __future__ import annotations
        import threading
        from collections.abc import Callable
        from loopline import tool

        @tool
        def take(x: {annotation}) -> None:
            "Take it."
    """
    file = write(tmp_path, {"tools.py": text}) / "tools.py"
    function: ToolFunction[..., Any] = vars(import_path(file))["take"]
    with pytest.raises(BundleError) as raised:
        _ = function.bind("shop").spec
    assert str(raised.value).startswith(line_of(file, "@tool"))
    assert message in str(raised.value)


def test_a_context_may_be_imported_for_types_only(tmp_path: Path) -> None:
    text = """
        from __future__ import annotations
        from typing import TYPE_CHECKING
        from loopline import tool

        if TYPE_CHECKING:
            from loopline import ToolContext

        @tool
        def who(context: ToolContext) -> str:
            "Say who."
            return context.user
    """
    file = write(tmp_path, {"tools.py": text}) / "tools.py"
    function: ToolFunction[..., Any] = vars(import_path(file))["who"]
    assert asyncio.run(text_of(function)) == "ann"


def test_a_function_below_another_decorator_is_found() -> None:
    @wraps(named)
    def louder(*arguments: Any, **named_arguments: Any) -> str:
        return named(*arguments, **named_arguments).upper()

    assert asyncio.run(text_of(tool(louder), name="a")) == "A"
