"""A conversation as a thread of AG-UI: its messages, and the state that a client may show."""

from __future__ import annotations

from loopline.events.dialects.client_run import plan_data
from loopline.events.turn_events import AnswerGiven
from loopline.models import Json, JsonObject
from loopline.timeline import FileAdded, Plan


class AgUiThread:
    """The messages of a thread, and its state: plans, the sources that answers cite, and files."""

    def __init__(self) -> None:
        self._messages: dict[str, JsonObject] = {}
        self._calls: dict[str, list[Json]] = {}
        self._plans = JsonObject()
        self._sources: dict[str, Json] = {}
        self._files: list[Json] = []

    @property
    def messages(self) -> list[Json]:
        """The messages as a snapshot has them."""
        return [
            {**message, "toolCalls": self._calls[key]} if key in self._calls else message
            for key, message in self._messages.items()
        ]

    @property
    def state(self) -> JsonObject:
        """The state as a snapshot has it."""
        sources, files = list(self._sources.values()), list(self._files)
        return {"plans": dict(self._plans), "sources": sources, "files": files}

    def is_known(self, client_ids: frozenset[str]) -> bool:
        """Return whether a client with these messages has all that the agent said."""
        return all(
            message_id in client_ids
            for message_id, message in self._messages.items()
            if message["role"] == "assistant"
        )

    def say(self, message_id: str, text: str) -> None:
        """Add a message of the user."""
        self._add(message_id, "user", {"content": text})

    def answer(self, message_id: str, text: str) -> None:
        """Add a message of the agent."""
        self._add(message_id, "assistant", {"content": text})

    def call(self, message_id: str, call_id: str, tool: str, arguments: str) -> None:
        """Add a call to the message of its decision."""
        if message_id not in self._calls:
            self._calls[message_id] = []
            self._add(message_id, "assistant", {})
        function: JsonObject = {"name": tool, "arguments": arguments}
        self._calls[message_id].append({"id": call_id, "type": "function", "function": function})

    def result(self, message_id: str, call_id: str, text: str, error: str) -> None:
        """Add the result of a call."""
        failure: JsonObject = {"error": error} if error else {}
        self._add(message_id, "tool", {"toolCallId": call_id, "content": text, **failure})

    def change(self, event: AnswerGiven | Plan | FileAdded) -> list[Json]:
        """Change the state, and return the operations of JSON Patch that do the same."""
        match event:
            case Plan() as plan:
                plan_id = plan.snapshot.plan_id
                self._plans[plan_id] = plan_data(plan)
                pointer = plan_id.replace("~", "~0").replace("/", "~1")
                return [_add(f"/plans/{pointer}", self._plans[plan_id])]
            case FileAdded(visibility="internal"):
                return []
            case FileAdded() as file:
                entry: JsonObject = {
                    "path": f"{file.area}/{file.path}",
                    "version": file.version,
                    "mime": file.mime,
                    "size": file.size,
                }
                self._files.append(entry)
                return [_add("/files/-", entry)]
            case AnswerGiven(sources=cited):
                sources = [item.source for item in cited if item.source is not None]
                fresh = [source for source in sources if source.url not in self._sources]
                rows: list[Json] = [{"url": item.url, "title": item.title} for item in fresh]
                self._sources |= {item.url: row for item, row in zip(fresh, rows, strict=True)}
                return [_add("/sources/-", row) for row in rows]

    def _add(self, message_id: str, role: str, data: JsonObject) -> None:
        self._messages[message_id] = {"id": message_id, "role": role, **data}


def _add(path: str, value: Json) -> Json:
    return {"op": "add", "path": path, "value": value}
