"""The model that all programs ask: it calls each tool once, then gives what is wanted as an answer."""

from __future__ import annotations

import json
from collections.abc import Sequence

from loopline.models import Json, JsonObject
from tests.support.peers.call_replies import Call, named_after
from tests.support.peers.http_server import Request, Step
from tests.support.peers.openai_like import CHAT, OpenAI
from tests.support.peers.openai_replies import Says
from tests.support.peers.streams import on_the_wire

ANSWER = "So it is: sencha."
MINUTES = 2
TEMPERATURE = 0.2
WITH_SETTINGS = f"{ANSWER} At {TEMPERATURE}, with a limit."
"""The answer to a request with the settings of the task `settings`."""
ARGUMENTS: dict[str, JsonObject] = {
    "price": {"name": "sencha"},
    "order": {"name": "sencha", "grams": 100},
    "confirm": {},
    "locate": {},
}
_LIMITS = {"max_tokens", "max_completion_tokens", "max_output_tokens"}
_ADVICE: JsonObject = {"minutes": MINUTES, "why": "It turns bitter."}


class TeaModel:
    """A server on both wires of OpenAI; of each response it remembers how many results went before."""

    def __init__(self) -> None:
        self._results: dict[str, int] = {}

    def respond(self, asked: Request) -> Sequence[Step]:
        vendor = OpenAI()
        refused = vendor.refuses(asked)
        before = self._results.get(str(asked.body.get("previous_response_id")), 0)
        done = before + _results(asked)
        self._results[named_after(asked, "resp")] = done
        return on_the_wire(refused or vendor.reply(says(asked, done), asked))


def says(asked: Request, done: int) -> Says:
    """Call the first tool that has no result; without one, give the typed answer or a text."""
    tools = _tools(asked)
    known = [name for wanted in ARGUMENTS for name in tools if name.endswith(wanted)]
    if done < len(known):
        name = known[done]
        return _call(
            asked, name, next(ARGUMENTS[item] for item in ARGUMENTS if name.endswith(item))
        )
    typed = [name for name, schema in tools.items() if '"minutes"' in schema]
    if typed:
        return _call(asked, typed[0], _ADVICE)
    if asked.body.get("temperature") == TEMPERATURE and _LIMITS & asked.body.keys():
        return Says(text=WITH_SETTINGS)
    return Says(text=json.dumps(_ADVICE) if _wants_json(asked) else ANSWER)


def _call(asked: Request, name: str, arguments: JsonObject) -> Says:
    return Says(calls=(Call(name, json.dumps(arguments), named_after(asked, "call")),))


def _tools(asked: Request) -> dict[str, str]:
    """Map the name of each tool that is offered to its schema, as text."""
    offered = [_object(_object(tool).get("function", tool)) for tool in _list(asked, "tools")]
    return {str(tool.get("name")): json.dumps(tool) for tool in offered}


def _results(asked: Request) -> int:
    if asked.path == CHAT:
        return sum(_object(item).get("role") == "tool" for item in _list(asked, "messages"))
    items = map(_object, _list(asked, "input"))
    return sum(item.get("type") == "function_call_output" for item in items)


def _wants_json(asked: Request) -> bool:
    return '"json_schema"' in json.dumps(
        [asked.body.get("response_format"), asked.body.get("text")]
    )


def _list(asked: Request, key: str) -> list[Json]:
    value = asked.body.get(key)
    return value if isinstance(value, list) else []


def _object(value: Json) -> JsonObject:
    return value if isinstance(value, dict) else {}
