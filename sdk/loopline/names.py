"""The author's code: its syntax trees, locations in it, checks of its values, and names similar to a misspelt one."""

from __future__ import annotations

import ast
import builtins
import inspect
import re
import reprlib
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from dis import opmap
from functools import wraps
from importlib import import_module
from types import FrameType, FunctionType, ModuleType
from typing import Any, Never, TypeVar

from loopline import errors
from loopline.errors import BundleError

ALIKE = 0.6
"""The similarity, from 0 to 1, from which an unknown name counts as a misspelling."""
_LISTED = 10

_NOT_AUTHORS = {"loopline", *sys.stdlib_module_names}
"""The packages whose frames are between the code of an author and the code that it calls."""

_ERRORS = tuple(
    name
    for name, value in vars(errors).items()
    if isinstance(value, type) and name not in ("BundleError", "LooplineError", "ToolError")
)
"""The errors that are not at the top of the package."""
MODULES: Mapping[str, Sequence[str]] = {
    "errors": _ERRORS,
    "guards": (
        "Allow",
        "Ask",
        "Deny",
        "Guard",
        "GuardedCall",
        "Guards",
        "Verdict",
        "ApprovalLimits",
        "allow_only",
        "ask_before",
        "block_repeated_failures",
        "rate_limit",
        "read_only",
    ),
    "hooks": ("Hold", "Middleware", "ReactStateV2", "Reminder", "RoundHook", "Stop"),
    "models": (
        "Model",
        "ModelRegistry",
        "StructuredCallError",
        "StructuredCallResult",
        "Usage",
        "structured_llm_call",
    ),
    "events": ("AgentEvent", "Delta", "Event", "PartialOutput"),
    "timeline": (
        "Block",
        "ConversationLimits",
        "ConversationSummary",
        "PendingCall",
        "PlanSnapshot",
    ),
    "conversations": ("Conversation", "InterruptQueue", "Receipt"),
    "files": ("AttachmentCaps",),
    "reader": ("Reading",),
    "bundle": ("ChatCommunicator",),
}
"""The modules of the package with public names, and these names."""

_IMPORT_FROM = opmap["IMPORT_FROM"]

T = TypeVar("T")


def nearest_name(name: str, names: Iterable[str], similarity: float = 0.0) -> str:
    """Return the name in `names` that is most similar to `name`; "" if none reaches `similarity`, from 0 to 1."""
    near = get_close_matches(name, list(names), 1, similarity)
    return near[0] if near else ""


def nearest_hint(name: str, names: Iterable[str]) -> str:
    """Return the hint for an error about an unknown name: `nearest is 'tea.order'`, or `there are none`.

    If no name is similar, the hint has at most `_LISTED` of the names: `the known names are tea.order, tea.steep`.
    """
    sorted_names = sorted(names)
    if near := nearest_name(name, sorted_names, ALIKE):
        return f"nearest is {near!r}"
    listed = ", ".join(get_close_matches(name, sorted_names, _LISTED, 0.0))
    left_out = len(sorted_names) - _LISTED
    ending = f" and {left_out} more" if left_out > 0 else ""
    return f"the known names are {listed}{ending}" if sorted_names else "there are none"


def moved_name(name: str, names: Iterable[str]) -> object:
    """Return a name that the package had at the top before, with a DeprecationWarning that says which module has it.

    Raises:
        ImportError: there is no such name, and the author's code is a `from loopline import …`, which would replace the text
            of another error. The message has the nearest of `names` and of the names of the modules.
        AttributeError: there is no such name.
    """
    by_name = {own: module for module, owned in MODULES.items() for own in owned}
    if name in by_name:
        module = by_name[name]
        message = f"{name} has moved: write from loopline.{module} import {name}"
        warnings.warn(message, DeprecationWarning, stacklevel=3)
        return getattr(import_module(f"loopline.{module}"), name)
    near = nearest_name(name, [*names, *by_name], ALIKE)
    if name.startswith("_"):
        hint = ""
    elif near in by_name:
        hint = f": nearest is {near!r} of loopline.{by_name[near]}"
    else:
        hint = f": {nearest_hint(name, names)}"
    frame = _caller()
    if hint and frame is not None and frame.f_code.co_code[frame.f_lasti] == _IMPORT_FROM:
        raise ImportError(f"cannot import name {name!r} from 'loopline'{hint}")
    raise AttributeError(f"module 'loopline' has no attribute {name!r}{hint}")


def caller_module() -> str:
    """Return the name of the innermost calling module outside of Loopline and Python; "" if there is none."""
    frame = _caller()
    return "" if frame is None else str(frame.f_globals["__name__"])


def caller_location() -> str:
    """Return `file:line` of the innermost calling code outside of Loopline and Python; "" if there is none."""
    frame = _caller()
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _caller() -> FrameType | None:
    """Return the innermost frame on the stack that is not of Loopline or Python; None if there is none."""
    frame = inspect.currentframe()
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] not in _NOT_AUTHORS:
            return frame
        frame = frame.f_back
    return None


def author_error(problem: str) -> BundleError:
    """Return an error about the author's code; its message begins with the file and line of the call, if known."""
    location = caller_location()
    return BundleError(f"{location}: {problem}" if location else problem)


def describe(value: object) -> str:
    """Return a short text for a value in an error message, such as `'tea'`, `the function steep` or `the class Tea`."""
    match value:
        case type():
            return f"the class {value.__name__}"
        case FunctionType():
            return f"the function {value.__name__}"
        case _ if type(value).__repr__ is object.__repr__:
            return f"an object of the class {type(value).__name__}"
        case _:
            return reprlib.repr(value)


def check_type(value: object, kinds: type | tuple[type, ...], what: str, expected: str) -> None:
    """Check that a value in the author's code is of one of the types, such as `check_type(text, str, "a message", "a str")`.

    Raises:
        BundleError: it is not; the message names the file and line of the call, if known.
    """
    if not isinstance(value, kinds):
        raise author_error(f"{what} must be {expected}, not {describe(value)}")


def check_list(values: object, what: str, expected: str) -> None:
    """Check that a value in the author's code is a list, a tuple or another sequence but not a str.

    Raises:
        BundleError: it is not; the message names the file and line of the call, if known.
    """
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise author_error(
            f"{what} must be a list of {expected}, not {describe(values)}: put it in brackets"
        )


def check_choice(value: object, choices: Iterable[str], what: str) -> None:
    """Check that a value in the author's code is one of the choices.

    Raises:
        BundleError: it is not; the message names the file and line of the call, if known, and the nearest choice.
    """
    names = list(choices)
    if value not in names:
        near = nearest_name(str(value), names, ALIKE)
        hint = f", nearest is {near!r}" if near else ""
        raise author_error(f"{what} must be one of {', '.join(names)}, not {describe(value)}{hint}")


def check_range(value: object, minimum: float, what: str) -> None:
    """Check that a value in the author's code is a number of at least `minimum`.

    Raises:
        BundleError: it is not; the message names the file and line of the call, if known.
    """
    if not isinstance(value, int | float) or isinstance(value, bool) or not value >= minimum:
        raise author_error(f"{what} must be a number of at least {minimum}, not {describe(value)}")


class AsyncContext:
    """A class that is opened with `async with`; a plain `with` is a clear error."""

    def __enter__(self) -> Never:
        """Refuse.

        Raises:
            BundleError: always; the message names the file and line of the call.
        """
        name = type(self).__name__
        raise author_error(f"{name} is opened with `async with`, inside an `async def` function")

    def __exit__(self, *error: object) -> None:
        """Do nothing; `with` looks this method up before it calls `__enter__`."""


def checks_keywords(kind: type[T]) -> type[T]:
    """Decorate a class so that an unknown keyword raises a TypeError that names the most similar parameter.

    The class is changed in place and returned. A positional argument raises a TypeError if all parameters are
    keyword-only.
    """
    create: Any = vars(kind)["__init__"]
    parameters = list(inspect.signature(create).parameters.values())[1:]
    names = [parameter.name for parameter in parameters]
    takes_keywords = all(parameter.kind is parameter.KEYWORD_ONLY for parameter in parameters)

    @wraps(create)
    def create_checked(self: object, *positional: object, **keywords: object) -> None:
        """Raise a TypeError for an unknown keyword, or for positionals if all are keywords; then call `create`."""
        if positional and takes_keywords:
            raise TypeError(f"{kind.__name__} takes keywords: write {kind.__name__}({names[0]}=…)")
        for name in keywords:
            if name not in names:
                hint = nearest_hint(name, names)
                raise TypeError(f"{kind.__name__} has no parameter {name!r}, {hint}")
        create(self, *positional, **keywords)

    type.__setattr__(kind, "__init__", create_checked)
    return kind


_PARSING = threading.Lock()
"""Held while a syntax tree is built: Python 3.11 may raise a SystemError if two threads build one at once."""


def parse_module(source: str | bytes) -> ast.Module:
    """Parse the source of a Python module.

    Raises:
        SyntaxError: the source is not valid Python.
        ValueError: the source has a null byte.
    """
    with _PARSING:
        return ast.parse(source)


def parse_expression(source: str) -> ast.expr:
    """Parse one Python expression.

    Raises:
        SyntaxError: the source is not one valid expression.
    """
    with _PARSING:
        return ast.parse(source, mode="eval").body


_KEYWORD = "() got an unexpected keyword argument "
_IMPORT = re.compile(r"cannot import name '(\w{1,100})' from '(loopline[\w.]{0,100})' \(")
_NO_MODULE = re.compile(r"No module named '(loopline\.[\w.]{1,100})'")


def misspelt_for(error: BaseException) -> str:
    """Return the name that an error of Python in the author's code probably means; "" if there is none.

    Python itself suggests names only where it prints a traceback.
    """
    frame = _innermost(error)
    match error:
        case AttributeError(name=str(name), obj=owner) if not isinstance(owner, ModuleType):
            return nearest_name(name, _attributes(owner), ALIKE)
        case NameError(name=str(name)) if frame is not None:
            return nearest_name(name, [*frame.f_locals, *frame.f_globals, *vars(builtins)], ALIKE)
        case TypeError() if _KEYWORD in str(error) and frame is not None:
            called, _, keyword = str(error).partition(_KEYWORD)
            function = _resolve(called, frame)
            parameters = list(inspect.signature(function).parameters) if function else []
            return nearest_name(keyword.strip("'"), parameters, ALIKE)
        case ImportError() if found := _IMPORT.search(str(error)):
            return nearest_name(found[1], dir(sys.modules.get(found[2])), ALIKE)
        case ModuleNotFoundError() if found := _NO_MODULE.search(str(error)):
            return nearest_name(found[1], [f"loopline.{name}" for name in MODULES], ALIKE)
        case _:
            return ""


def _innermost(error: BaseException) -> FrameType | None:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return None if trace is None else trace.tb_frame


def _attributes(owner: object) -> list[str]:
    return [name for name in dir(owner) if not name.startswith("_")]


def _resolve(path: str, frame: FrameType) -> Callable[..., object] | None:
    """Return the function with this qualified name, as a frame sees it; None if it cannot be found."""
    first, *inner = path.split(".")
    value: object = frame.f_globals.get(first) or frame.f_locals.get(first)
    if value is None and inner:  # a base class that the module does not import
        own = [frame.f_locals.get("self"), *frame.f_locals.values()]
        value = next((each for each in own if hasattr(each, inner[0])), None)
    for name in inner:
        value = getattr(value, name, None)
    return value if callable(value) else None
