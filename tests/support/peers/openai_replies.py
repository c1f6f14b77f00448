"""What an OpenAI-compatible server is made to say, and the oddities of those that are not OpenAI."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from loopline.models.json import JsonObject
from tests.support.peers.behaviors import Fault, Speech
from tests.support.peers.call_replies import Call
from tests.support.peers.streams import PLAIN, Framing, pieces_of

Finish: TypeAlias = Literal["stop", "length", "tool_calls", "content_filter"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens; `cached` and `written` are part of the prompt, `reasoning` of the completion."""

    prompt: int = 11
    completion: int = 7
    cached: int = 0
    written: int = 0
    reasoning: int = 0

    def of_chat(self) -> JsonObject:
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {
                "cached_tokens": self.cached,
                "cache_write_tokens": self.written,
                "audio_tokens": 0,
            },
            "completion_tokens_details": {"reasoning_tokens": self.reasoning, "audio_tokens": 0},
        }

    def of_response(self) -> JsonObject:
        return {
            "input_tokens": self.prompt,
            "input_tokens_details": {
                "cached_tokens": self.cached,
                "cache_write_tokens": self.written,
            },
            "output_tokens": self.completion,
            "output_tokens_details": {"reasoning_tokens": self.reasoning},
            "total_tokens": self.prompt + self.completion,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Odd:
    """In what a server differs from OpenAI; all but `think_tags` and `whole_arguments` in chat alone.

    `usage` is in a last chunk without choices if the request asked for it ("asked") or anyway
    ("last"), in the chunk that has the finish reason ("finish"), or in each, growing ("every").
    """

    reuses_index: bool = False
    """Every call has the index 0, as with Ollama."""
    omits_ids: bool = False
    whole_arguments: bool = False
    """A call's arguments come with its name, in one delta."""
    interleaves: bool = False
    """The deltas of parallel calls take turns."""
    role: Literal["first", "every", "never"] = "first"
    usage: Literal["asked", "last", "finish", "every"] = "asked"
    reasoning_field: Literal["reasoning_content", "reasoning"] = "reasoning_content"
    think_tags: bool = False
    """Reasoning is part of the text, in think tags that are cut like the rest of it."""
    omits_done: bool = False
    """The stream ends without its last line, [DONE]."""


ORDINARY = Odd()
COUNTED = Usage()


@dataclass(frozen=True, slots=True)
class Says(Speech):
    """A reply of a model, in so many pieces a part or cut at these places; usage None is not told.

    Without `finish` it is what OpenAI says: "tool_calls" with calls, else "stop". `failed` ends a
    response as failed; a chat completion knows no such end.
    """

    text: str = ""
    calls: tuple[Call, ...] = ()
    reasoning: str = ""
    refusal: str = ""
    usage: Usage | None = COUNTED
    finish: Finish | None = None
    failed: Fault | None = None
    pieces: int | tuple[int, ...] = 3
    odd: Odd = ORDINARY
    framing: Framing = PLAIN

    @property
    def content(self) -> str:
        """The text, with the reasoning in it where that is the server's way."""
        tagged = self.odd.think_tags and self.reasoning
        return f"<think>{self.reasoning}</think>{self.text}" if tagged else self.text

    @property
    def apart(self) -> str:
        """The reasoning that is not part of the text."""
        return "" if self.odd.think_tags else self.reasoning

    @property
    def finished(self) -> Finish:
        return self.finish or ("tool_calls" if self.calls else "stop")

    def cut(self, text: str) -> list[str]:
        return pieces_of(text, self.pieces)
