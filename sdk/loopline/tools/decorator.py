"""The decorator `@tool`, which makes a tool of a typed function.

It checks the function at once. The JSON Schema of its parameters is made at its first use.
"""

from __future__ import annotations

import dis
import inspect
import string
from collections.abc import Awaitable, Callable
from types import FunctionType
from typing import Any, get_args, overload

from loopline.errors import BundleError
from loopline.timeline import Effect
from loopline.tools.functions import P, R, ToolFunction, find_location, source_function
from loopline.tools.parameters import nearest_first

EFFECTS: tuple[Effect, ...] = get_args(Effect)
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@overload
def tool(function: Callable[P, R], /) -> ToolFunction[P, R]: ...
@overload
def tool(
    *,
    effect: Effect | None = None,
    key: str = "",
    reconcile: Callable[..., Any] | None = None,
    approve: bool | Callable[..., bool | str | Awaitable[bool | str]] = False,
    people: int = 1,
    client: bool = False,
    background: bool = False,
) -> Callable[[Callable[P, R]], ToolFunction[P, R]]: ...
def tool(
    function: Callable[P, R] | None = None,
    /,
    *,
    effect: Effect | None = None,
    key: str = "",
    reconcile: Callable[..., Any] | None = None,
    approve: bool | Callable[..., bool | str | Awaitable[bool | str]] = False,
    people: int = 1,
    client: bool = False,
    background: bool = False,
) -> ToolFunction[P, R] | Callable[[Callable[P, R]], ToolFunction[P, R]]:
    """Make a tool of a typed function with a docstring; the function can still be called directly.

    The default effect is "exclusive": no other call runs at the same time. `reconcile` is a function with some of the
    same parameters. After a crash it returns the result of a call that had started, or None if the result is unknown.

    With `approve=True` each call waits until the user has approved it. A function, plain or async, gets the arguments of the
    call as a dict, and a `GuardedCall` with its user and conversation; it returns whether the call needs approval, or the
    question to ask. If it raises, the call needs approval. With `people=2` a second person must approve the call, too.

    With `client=True` the client runs the calls: the turn pauses with each call, and the client's answer is its result, which
    must fit the return type of the function. The function has a docstring and no code, or only raises NotImplementedError.

    With `background=True` each call ends at once, and the function continues while the turn continues or ends. Its return value is
    the input of a later round, or of the next turn. After a crash a function that reads is called again, and otherwise
    `reconcile` is asked for the result. In a child run, the call waits for the function.

    Raises:
        BundleError: the function cannot be a tool; the message has the reason, the file and the line.
    """

    def decorate(function: Callable[P, R]) -> ToolFunction[P, R]:
        """Make the tool; raise a BundleError with file and line if the function or an option is not valid."""
        source = source_function(function)
        problem = (
            _effect_problem(effect or "exclusive", key)
            or _function_problem(source)
            or _key_problem(key, inspect.signature(source))
            or _approve_problem(approve, people)
            or _client_problem(source, reconcile, is_client=client)
            or _background_problem(background, effect, is_client=client)
        )
        if problem:
            raise BundleError(f"{find_location(source)}: tool {source.__name__!r} {problem}")
        _check_reconcile(function, reconcile)
        return ToolFunction(
            function,
            effect=effect,
            key=key,
            reconcile=reconcile,
            approve=approve,
            people=people,
            client=client,
            background=background,
        )

    return decorate if function is None else decorate(function)


def _approve_problem(approve: object, people: int) -> str:
    """Return the problem of the values of `approve` and `people`; "" if they are valid."""
    if people < 1 or (people > 1 and not approve):
        return f"has people={people}: it must be 1, or more together with approve"
    if isinstance(approve, bool):
        return ""
    if not callable(approve):
        return f"has approve={approve!r}: it must be True, False, or a function of the arguments and the call"
    try:
        inspect.signature(approve).bind({}, None)
    except TypeError:
        return "has a function for approve that does not take two arguments: those of the call, and the call"
    return ""


_NO_CODE = frozenset(
    {"RESUME", "NOP", "LOAD_CONST", "RETURN_CONST", "RETURN_VALUE", "LOAD_GLOBAL", "RAISE_VARARGS"}
)
"""The operations of a function that only returns None, or only raises an exception class."""


def _client_problem(
    function: FunctionType, reconcile: Callable[..., Any] | None, *, is_client: bool
) -> str:
    """Return the problem of a tool with `client=True` that has code or `reconcile`; "" if it is valid."""
    if not is_client:
        return ""
    if reconcile is not None:
        return "has client=True and reconcile: the client says what came of a call"
    operations = {operation.opname for operation in dis.get_instructions(function)}
    code = function.__code__
    names, values = {*code.co_names}, {*code.co_consts}
    if (
        operations <= _NO_CODE
        and names <= {"NotImplementedError"}
        and values <= {None, function.__doc__}
    ):
        return ""
    return (
        "has client=True and code, which would never run because the client runs its calls: leave only the docstring, "
        "or raise NotImplementedError"
    )


def _background_problem(background: object, effect: Effect | None, *, is_client: bool) -> str:
    """Return the problem if `background` is not a bool, or is True for a client tool or "meta"; otherwise ""."""
    if not isinstance(background, bool):
        return f"has background={background!r}: it must be True or False"
    if background and is_client:
        return "has background=True and client=True: the turn waits for the client"
    if background and effect == "meta":
        return 'has background=True and effect="meta": its child runs would end with the turn'
    return ""


def _effect_problem(effect: str, key: str) -> str:
    """Return the problem if the effect is unknown, or is not "write" or "meta" and there is a key; otherwise ""."""
    if effect not in EFFECTS:
        nearest = nearest_first(effect, EFFECTS)[0]
        return f"has the effect {effect!r}, nearest is {nearest!r}: one of {', '.join(EFFECTS)}"
    if key and effect not in ("write", "meta"):
        return f'has a key but the effect {effect!r}: a key goes with effect="write" or "meta"'
    return ""


def _function_problem(function: FunctionType) -> str:
    """Return the problem of a generator, a missing docstring, or a parameter without name or type; otherwise ""."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        return "is a generator: return the whole value"
    if not inspect.getdoc(function):
        return "has no docstring: the model reads it to know what the tool is for"
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind not in _NAMED:
            written = str(parameter).partition(":")[0]
            return f"takes {written!r}, but a call gives each argument by its name: use a parameter without `*` and `/`"
        if parameter.annotation is parameter.empty:
            return f"has no type for {name!r}: annotate it"
    return ""


def _check_reconcile(function: Callable[..., Any], check: Callable[..., Any] | None) -> None:
    """Check that the function `reconcile`, if there is one, has only parameters that its tool has.

    Raises:
        BundleError: it has another parameter; the message has its file and line.
    """
    if check is None:
        return
    parameters = list(inspect.signature(function).parameters)
    for name in inspect.signature(check).parameters:
        if name not in parameters:
            raise BundleError(
                f"{find_location(source_function(check))}: reconcile takes {name!r}, which its tool does "
                f"not: {nearest_first(name, parameters)}"
            )


def _key_problem(key: str, signature: inspect.Signature) -> str:
    """Return the problem of a key that is not a template or names an unknown parameter; otherwise ""."""
    try:
        names = [name for _, name, _, _ in string.Formatter().parse(key) if name is not None]
    except ValueError as error:
        return f"has the key {key!r}, which is not a template: {error}"
    for name in names:
        if name not in signature.parameters:
            parameters = nearest_first(name, signature.parameters)
            return (
                f"has the key {key!r}, but no parameter {name!r}: its parameters are {parameters}"
            )
    return ""
