"""What may be known of a model: sizes, abilities, prices, and how its API wants to be asked."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from loopline.models.model import LongPrice, Price
from loopline.models.prompt import TailKind

Api = Literal["chat", "responses", "messages"]
"""OpenAI's Chat Completions or Responses, or Anthropic's Messages."""

Thinking = Literal["none", "plain", "summarized", "signed"]
"""How thinking comes back: not at all, as text, as a summary with the whole of it encrypted, or
signed. What is signed or encrypted goes back unchanged with the results of the calls behind it."""

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]

OutputParameter = Literal["max_tokens", "max_completion_tokens", "max_output_tokens"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What a model costs, in US dollars for a million tokens.

    `cache_write` is for the shorter life of an entry (Anthropic: 5 minutes, OpenAI: 30) and
    `cache_write_long` for the longer (an hour, 12 hours), None where there is no other. A provider
    that charges nothing extra for writing has the price of input there.
    """

    input: float
    output: float
    cache_read: float
    cache_write: float
    cache_write_long: float | None = None

    def price(self, *, long: bool = False) -> Price:
        """The price of a request whose entries live shorter, or longer."""
        write = self.cache_write_long if long else self.cache_write
        return Price(
            input=self.input,
            output=self.output,
            cache_read=self.cache_read,
            cache_write=self.cache_write if write is None else write,
        )

    def times(self, of_input: float, of_output: float) -> Rates:
        """So many times these rates, where caches cost as many times as input."""
        long = self.cache_write_long
        return Rates(
            input=round(self.input * of_input, 6),
            output=round(self.output * of_output, 6),
            cache_read=round(self.cache_read * of_input, 6),
            cache_write=round(self.cache_write * of_input, 6),
            cache_write_long=None if long is None else round(long * of_input, 6),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LongPrompt:
    """What a whole request costs instead when its prompt has more tokens than `over`."""

    over: int
    rates: Rates


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What is known of a model. Sizes are in tokens.

    The defaults are what may be relied on when nothing is known.

    Attributes:
        window: What prompt and output may have together. OpenAI takes no more as a prompt than
            the window less the output limit.
        tool_choice: It can be made to call a tool. Where thinking is asked for by a budget or
            `adaptive`, it is turned off for that.
        json_mode: It can be held to some JSON object.
        json_schema: It can be held to a JSON Schema.
        schema_beside_tools: It still calls tools while its text is held to a JSON Schema.
        thinking_by: What asks for thinking: a budget in tokens, `adaptive`, an effort, or nothing.
            `unasked` is adaptive too, and on where nothing is said.
        thinking_off: The value that turns thinking off: the effort `none`, or a `thinking.type`.
            Empty where it cannot be turned off, or there is none.
        efforts: The efforts that are taken, from the least. Any other is refused.
        temperature: Whether temperature and top_p are taken: `always`, `never`, or only while it
            is `unthinking`.
        api: The API on which it thinks and calls tools in one request.
        output_parameter: How a request names the most that may be written.
        thinking_field: What plain thinking is called in a message that takes it back; empty where
            none does, or where it comes back otherwise.
        thinking_display: What asks for the text of its thinking where that is left out; empty where it
            comes by itself, or cannot be had.
        tail: Where the volatile end of a prompt may stand. `kept` and `cleared` mean that a later
            request must repeat it: thinking is bound to everything before it.
        stop: It takes texts before which a reply is to end.
        cache_key: It takes a key that requests with the same beginning share.
        rates: None where nobody says, or nobody is paid.
        long_prompt: None where a long prompt costs no more.
    """

    window: int = 32_000
    output_limit: int = 8_000
    tool_call: bool = True
    tool_choice: bool = False
    json_mode: bool = False
    json_schema: bool = False
    schema_beside_tools: bool = False
    vision: bool = False
    pdf: bool = False
    thinking: Thinking = "none"
    thinking_by: Literal["nothing", "budget", "adaptive", "unasked", "effort"] = "nothing"
    thinking_off: Literal["", "none", "disabled", "between_tools"] = ""
    efforts: tuple[Effort, ...] = ()
    temperature: Literal["always", "unthinking", "never"] = "never"
    api: Api = "chat"
    output_parameter: OutputParameter = "max_tokens"
    thinking_field: Literal["", "reasoning_content", "reasoning"] = ""
    thinking_display: Literal["", "summarized"] = ""
    tail: TailKind = "dropped"
    stop: bool = True
    cache_key: bool = False
    rates: Rates | None = None
    long_prompt: LongPrompt | None = None

    @property
    def price(self) -> Price | None:
        """What requests cost, the long ones too; their entries in a cache live shorter."""
        if self.rates is None:
            return None
        long = self.long_prompt
        return replace(
            self.rates.price(),
            long=None if long is None else LongPrice(over=long.over, price=long.rates.price()),
        )


UNKNOWN = ModelFacts()
"""A model of a provider that is not in the table."""

_SAME_MODEL = re.compile(r"$|[:@\[]|-(\d{4}-\d\d-\d\d|\d{8}|\d{4}|latest)($|[:@\[])", re.ASCII)
"""What may follow a family in the name of one of its models: a date, `-latest`, a tag. A version such
as `-6` or `.1`, or a kind such as `-mini`, names another model, of which nothing is known."""


def belongs(name: str, family: str) -> bool:
    """Whether the table speaks of this model where it speaks of this family.

    A family that is a provider alone, such as `openai:`, holds everything the provider has; one that
    ends with a slash, everything of a maker.
    """
    rest, is_whole = name.removeprefix(family), family.endswith((":", "/"))
    return name.startswith(family) and (is_whole or _SAME_MODEL.match(rest) is not None)
