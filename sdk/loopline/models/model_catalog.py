"""The catalogue of models: capabilities and prices of each family, by the prefix of the model's name.

Every row was read on 2026-11-20, in copies of the pages below that were stored until that day.
Prices are those of standard processing.

OpenAI: the pages of the models, "Pricing", "Compare models", "Deprecations", "Model guidance" and
"Deployment checklist" at developers.openai.com/api/docs. Models that were shut down by that day are left
out; GPT-5 and o3 will be on 2026-12-11, GPT-4o and GPT-4.1 on 2027-01-14, GPT-5.1 on 2027-04-01. From
GPT-5.4 on, Chat Completions rejects tools if thinking is on (issues openai-openapi 541 and litellm
34569), so these rows use Responses. Input and caches cost twice, and output 1.5 times as much for a
prompt of more than 272,000 tokens. For GPT-5.3 and earlier, sizes and efforts are those of the catalogue
models.dev of 2026-07-02, which quotes the same pages. The cache prices of GPT-6.2 Astra follow from
those of GPT-6 Astra and the common factor for writing.

Anthropic: "Models overview", the overview and "What's new" of each model, "Effort" and "Pricing" at
platform.claude.com/docs; the support of a JSON Schema, by the pages of Google Cloud and Amazon Bedrock.
Writing to the cache costs 1.25 or 2 times the input. The price of reading Sonnet 5.5 from the cache is
that from 2026-10-07 on. Claude Haiku 5.5 costs five times as much for a prompt of more than 100,000
tokens. From Claude Opus 4.7 on, sampling parameters are rejected, and the text of thinking is sent only
if `display` asks for it; from the models 5 on, thinking is on by default. Up to Claude Opus 4.7 a call
cannot be forced while thinking is on (langchain-aws 1141), and 4.8 is treated the same. In the 5.1, 5.2
and 5.5 models, thinking is bound to the conversation before it, and this is assumed for unknown models;
all of these except Haiku reject a forced call. Models that are only available on other platforms stay
listed.

Groq: console.groq.com/docs/models. DeepSeek: "Models & Pricing" and "Thinking Mode" at
api-docs.deepseek.com; the price is that of peak hours, and half of it at other times; `minimal` counts
as `low`, and `medium` and `xhigh` as `high`. OpenRouter: the pages of the models, "Model migrations" and
"Reasoning tokens" at openrouter.ai; a model has the price of its maker, and plain thinking is accepted
as `reasoning_content`. Ollama: "Context length" and "OpenAI compatibility" at docs.ollama.com; the window
is the server's default below 24 GiB of video memory, even if the model supports more, because the server
truncates longer prompts without an error. The list of its thinking models is from Spring AI's reference.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal

from loopline.models.model import Capabilities, LongPrice, Price
from loopline.models.prompt import TailKind
from loopline.models.request_limits import AttachmentLimits
from loopline.models.settings import Effort, SettingSupport

Api = Literal["chat", "responses", "messages"]
"""OpenAI's Chat Completions or Responses, or Anthropic's Messages."""

Thinking = Literal["none", "plain", "summarized", "signed"]
"""The form of thinking in a reply: missing, text, a summary with the complete text encrypted, or signed.
Signed or encrypted thinking must be sent back unchanged together with the results of its calls."""

OutputParameter = Literal["max_tokens", "max_completion_tokens", "max_output_tokens"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """The known facts about a model. Sizes are in tokens.

    The defaults are safe for a model that is not known.

    Attributes:
        window: The limit for prompt and output together. OpenAI limits the prompt to the window minus the
            output limit.
        tool_choice: A call can be forced. Thinking with a budget or `adaptive` is turned off for such a
            request.
        json_mode: The text can be restricted to a JSON object.
        json_schema: The text can be restricted to a JSON Schema.
        schema_beside_tools: The model can still call tools while its text is restricted to a JSON Schema.
        thinking_by: The parameter that requests thinking: a budget in tokens, `adaptive`, an effort, or
            nothing. `unasked` is adaptive too, and on by default.
        thinking_off: The value that turns thinking off: the effort `none`, or a `thinking.type`. Empty if it
            cannot be turned off, or the model does not think.
        efforts: The supported efforts, the lowest first; other values are rejected.
        temperature: When temperature and top_p are supported: `always`, `never`, or only if thinking is off.
        api: The API that supports thinking and tool calls in one request.
        output_parameter: The name of the parameter for the output limit.
        thinking_field: The field of a message in which plain thinking is sent back; empty if it is not sent
            back, or in another form.
        thinking_display: The value that requests the text of thinking; empty if the text is always sent, or
            never.
        tail: The position of a prompt's changing end. `kept` and `cleared` mean that later requests must
            repeat it, because thinking is bound to everything before it.
        temperature_limit: The highest temperature.
        both_samplings: temperature and top_p can be set together.
        stop: Stop texts are supported.
        stop_limit: The most stop texts of a request.
        seed: A seed is supported; only Chat Completions has one.
        penalties: The penalties are supported whenever temperature is; only Chat Completions has them.
        parallel_calls: A request can say whether a reply may have several calls.
        service_tiers: The supported service tiers.
        cache_key: A key for requests with a common prefix is supported.
        price: None if it is unknown, or the model is free.
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
    temperature_limit: float = 2.0
    both_samplings: bool = True
    stop: bool = True
    stop_limit: int = 4
    seed: bool = False
    penalties: bool = False
    parallel_calls: bool = False
    service_tiers: tuple[str, ...] = ()
    cache_key: bool = False
    price: Price | None = None

    def capabilities(self, attachments: AttachmentLimits) -> Capabilities:
        """Return the capabilities of the model, with these limits for attachments."""
        return Capabilities(
            tool_call=self.tool_call,
            tool_choice=self.tool_choice,
            json_mode=self.json_mode,
            json_schema=self.json_schema,
            schema_beside_tools=self.schema_beside_tools,
            vision=self.vision,
            pdf=self.pdf,
            thinking=self.thinking != "none",
            tail=self.tail,
            window=self.window,
            output_limit=self.output_limit,
            price=self.price,
            attachments=attachments,
            accepts=self.setting_support(),
        )

    def setting_support(self) -> SettingSupport:
        """Return the settings that the model supports over its API.

        A seed and penalties are supported only over Chat Completions, and stop texts not over Responses. A model that
        thinks with a budget supports the efforts `minimal` to `high`.
        """
        is_chat = self.api == "chat"
        efforts: tuple[Effort, ...] = self.efforts
        if self.thinking_by == "budget":
            efforts = ("minimal", *_LOW_TO_HIGH)
        if self.thinking_off and "none" not in efforts:
            efforts = ("none", *efforts)
        return SettingSupport(
            sampling=self.temperature,
            thinks=self.thinking_by in ("effort", "unasked"),
            both=self.both_samplings,
            temperature_limit=self.temperature_limit,
            seed=self.seed and is_chat,
            penalties=self.penalties and is_chat,
            stops=self.stop_limit if self.stop and self.api != "responses" else 0,
            parallel_tool_calls=self.parallel_calls,
            efforts=efforts,
            service_tiers=self.service_tiers,
            requests=True,
        )


UNKNOWN = ModelFacts()
"""A model of a provider that is not in the catalogue."""

_SAME_MODEL = re.compile(r"$|[:@\[]|-(\d{4}-\d\d-\d\d|\d{8}|\d{4}|latest)($|[:@\[])", re.ASCII)
"""The text that may follow a family in the name of one of its models: a date, `-latest`, a tag. A version such as `-6`
or `.1`, or a kind such as `-mini`, is another model, which is unknown."""


def belongs(name: str, family: str) -> bool:
    """Return whether a model belongs to a family of the catalogue.

    A provider such as `openai:` is the family of all its models; a family with a slash at its end is that of all models
    of a maker.
    """
    suffix = name.removeprefix(family)
    is_open = family.endswith((":", "/"))
    return name.startswith(family) and (is_open or _SAME_MODEL.match(suffix) is not None)


def _price(fresh: float, output: float, cached: float, *, long: float | None = None) -> Price:
    """Return the price of a model of a provider with free cache writes."""
    return Price(
        input=fresh, output=output, cache_read=cached, cache_write=fresh, cache_write_long=long
    )


def _openai_price(
    fresh: float, output: float, cached: float, *, long: float | None = None
) -> Price:
    """Return the price of a model of OpenAI since GPT-5.6: cache writes cost 1.25 times the input."""
    return replace(_price(fresh, output, cached, long=long), cache_write=round(fresh * 1.25, 6))


def _claude(fresh: float, output: float, read: float = 0.1) -> Price:
    """Return the price of a model of Anthropic; a cache read costs `read` times the input price."""
    return Price(
        input=fresh,
        output=output,
        cache_read=round(fresh * read, 6),
        cache_write=round(fresh * 1.25, 6),
        cache_write_long=fresh * 2,
    )


_LOW_TO_HIGH: tuple[Effort, ...] = ("low", "medium", "high")
_TO_XHIGH: tuple[Effort, ...] = (*_LOW_TO_HIGH, "xhigh")
_TO_MAX: tuple[Effort, ...] = (*_TO_XHIGH, "max")
_NONE_TO_MAX: tuple[Effort, ...] = ("none", *_TO_MAX)
_MEDIUM_TO_XHIGH: tuple[Effort, ...] = ("medium", "high", "xhigh")

_PLAIN_TIERS = ("auto", "default", "priority")
_OPENAI_TIERS = ("auto", "default", "flex", "priority")
_OPENAI = ModelFacts(
    api="responses",
    output_parameter="max_output_tokens",
    cache_key=True,
    parallel_calls=True,
    service_tiers=_OPENAI_TIERS,
)
_PLAIN = ModelFacts(
    window=128_000,
    output_limit=16_384,
    tool_choice=True,
    json_mode=True,
    json_schema=True,
    schema_beside_tools=True,
    vision=True,
    pdf=True,
    temperature="always",
    output_parameter="max_completion_tokens",
    cache_key=True,
    seed=True,
    penalties=True,
    parallel_calls=True,
    service_tiers=_PLAIN_TIERS,
)
_GPT_5 = replace(
    _PLAIN,
    window=400_000,
    output_limit=128_000,
    thinking="summarized",
    thinking_by="effort",
    temperature="never",
    stop=False,
    penalties=False,
    service_tiers=_OPENAI_TIERS,
    efforts=("minimal", *_LOW_TO_HIGH),
)
_GPT_5_1 = replace(
    _GPT_5,
    thinking_off="none",
    temperature="unthinking",
    efforts=("none", *_LOW_TO_HIGH),
    price=_price(1.25, 10, 0.125),
)
_GPT_5_2 = replace(_GPT_5_1, efforts=("none", *_TO_XHIGH), price=_price(1.75, 14, 0.175))
_RESPONSES = replace(_GPT_5_2, api="responses", output_parameter="max_output_tokens", tail="inside")
_MILLION = replace(_RESPONSES, window=1_050_000)
_PRO = replace(
    _RESPONSES,
    thinking_off="",
    temperature="never",
    json_schema=False,
    schema_beside_tools=False,
    json_mode=False,
    efforts=_MEDIUM_TO_XHIGH,
    service_tiers=("auto", "default"),
)
_CODEX = replace(_RESPONSES, thinking_off="", temperature="never", efforts=_TO_XHIGH)
_PRO_MILLION = replace(_PRO, window=1_050_000)
_O3 = replace(
    _GPT_5,
    window=200_000,
    output_limit=100_000,
    efforts=_LOW_TO_HIGH,
    parallel_calls=False,
    price=_price(2, 8, 0.5),
)


def _million(price: Price, efforts: tuple[Effort, ...], base: ModelFacts = _MILLION) -> ModelFacts:
    """Return the facts of an OpenAI model with a window of a million tokens.

    For a prompt of more than 272,000 tokens, input and caches cost twice, and output 1.5 times `price`. If `none` is
    not in `efforts`, thinking cannot be turned off, and temperature is not supported.
    """
    off = "none" in efforts
    return replace(
        base,
        efforts=efforts,
        thinking_off="none" if off else "",
        temperature="unthinking" if off else "never",
        price=replace(price, long=LongPrice(over=272_000, price=price.times(2, 1.5))),
    )


_GPT_5_6 = _million(_openai_price(4, 20, 0.4), _NONE_TO_MAX)

_OPENAI_ROWS: Mapping[str, ModelFacts] = {
    "": _OPENAI,
    "gpt-6.2-astra": _million(_openai_price(8, 40, 0.4), _TO_MAX),
    "gpt-6.2-sol": _million(_openai_price(2, 10, 0.1, long=5), _TO_MAX),
    "gpt-6.1-sol": _million(_openai_price(2, 10, 0.1), _TO_MAX),
    "gpt-6.1-terra": _million(_openai_price(1, 5, 0.05, long=2.5), _NONE_TO_MAX),
    "gpt-6-astra": _million(_openai_price(10, 50, 1), _TO_MAX),
    "gpt-6-sol": _million(_openai_price(2, 10, 0.2), _NONE_TO_MAX),
    "gpt-6-luna": _million(_openai_price(0.1, 0.5, 0.01), _NONE_TO_MAX),
    "gpt-5.6": _GPT_5_6,
    "gpt-5.6-sol": _GPT_5_6,
    "gpt-5.6-terra": _million(_openai_price(2, 12, 0.2), _NONE_TO_MAX),
    "gpt-5.6-luna": _million(_openai_price(0.2, 1.2, 0.02), _NONE_TO_MAX),
    "gpt-5.5": _million(_price(5, 30, 0.5), ("none", *_TO_XHIGH)),
    "gpt-5.5-pro": _million(_price(30, 180, 30), _MEDIUM_TO_XHIGH, _PRO_MILLION),
    "gpt-5.4": _million(_price(2.5, 15, 0.25), ("none", *_TO_XHIGH)),
    "gpt-5.4-pro": _million(_price(30, 180, 30), _MEDIUM_TO_XHIGH, _PRO_MILLION),
    "gpt-5.4-mini": replace(_RESPONSES, price=_price(0.75, 4.5, 0.075)),
    "gpt-5.4-nano": replace(_RESPONSES, price=_price(0.2, 1.25, 0.02)),
    "gpt-5.3-codex": _RESPONSES,
    "gpt-5.2": _GPT_5_2,
    "gpt-5.2-codex": _CODEX,
    "gpt-5.2-pro": replace(_PRO, price=_price(21, 168, 21)),
    "gpt-5.1": _GPT_5_1,
    "gpt-5.1-codex": replace(_CODEX, efforts=_LOW_TO_HIGH, price=_price(1.25, 10, 0.125)),
    "gpt-5": replace(_GPT_5, price=_price(1.25, 10, 0.125)),
    "gpt-5-mini": replace(_GPT_5, price=_price(0.25, 2, 0.025)),
    "gpt-5-nano": replace(_GPT_5, price=_price(0.05, 0.4, 0.005)),
    "gpt-5-pro": replace(_PRO, efforts=("high",), price=_price(15, 120, 15)),
    "o3": _O3,
    "o3-pro": replace(
        _O3,
        api="responses",
        output_parameter="max_output_tokens",
        tail="inside",
        price=_price(20, 80, 20),
    ),
    "gpt-4.1": replace(_PLAIN, window=1_047_576, output_limit=32_768, price=_price(2, 8, 0.5)),
    "gpt-4.1-mini": replace(
        _PLAIN, window=1_047_576, output_limit=32_768, price=_price(0.4, 1.6, 0.1)
    ),
    "gpt-4o": replace(_PLAIN, price=_price(2.5, 10, 1.25)),
    "gpt-4o-mini": replace(_PLAIN, price=_price(0.15, 0.6, 0.075)),
}

_ANTHROPIC = ModelFacts(
    api="messages",
    thinking="signed",
    temperature_limit=1.0,
    stop_limit=64,
    parallel_calls=True,
    service_tiers=("auto", "standard_only"),
)
_CLAUDE = replace(
    _ANTHROPIC, window=200_000, output_limit=64_000, tool_choice=True, vision=True, pdf=True
)
_BUDGET = replace(
    _CLAUDE,
    thinking_by="budget",
    thinking_off="disabled",
    temperature="unthinking",
    both_samplings=False,
)
_CLAUDE_4 = replace(_BUDGET, both_samplings=True)
_BUDGET_SCHEMA = replace(_BUDGET, json_schema=True, schema_beside_tools=True)
_CLAUDE_4_6 = replace(
    _BUDGET_SCHEMA, window=1_000_000, thinking_by="adaptive", efforts=(*_LOW_TO_HIGH, "max")
)
_CLAUDE_4_7 = replace(
    _CLAUDE_4_6,
    output_limit=128_000,
    thinking_display="summarized",
    temperature="never",
    efforts=_TO_MAX,
)
_CLAUDE_5 = replace(_CLAUDE_4_7, thinking_by="unasked")
_FABLE_5 = replace(_CLAUDE_5, thinking_off="", price=_claude(10, 50))
_BOUND = replace(_CLAUDE_5, tool_choice=False, thinking_off="", tail="cleared")
_FABLE_5_1 = replace(_BOUND, price=_claude(10, 50, 0.025))
_FABLE_5_2 = replace(_BOUND, price=_claude(8, 40, 0.025))
_HAIKU_5_5 = _claude(0.1, 0.5)

_ANTHROPIC_ROWS: Mapping[str, ModelFacts] = {
    "": replace(_ANTHROPIC, tail="kept"),
    "claude-fable-5-2": _FABLE_5_2,
    "claude-mythos-5-2": _FABLE_5_2,
    "claude-fable-5-1": _FABLE_5_1,
    "claude-mythos-5-1": _FABLE_5_1,
    "claude-fable-5": _FABLE_5,
    "claude-mythos-5": _FABLE_5,
    "claude-mythos-preview": replace(
        _FABLE_5,
        json_schema=False,
        schema_beside_tools=False,
        efforts=(*_LOW_TO_HIGH, "max"),
        price=None,
    ),
    "claude-opus-5-5": replace(_BOUND, price=_claude(4, 20, 0.05)),
    "claude-opus-5": replace(_CLAUDE_5, price=_claude(5, 25)),
    "claude-opus-4-8": replace(_CLAUDE_4_7, price=_claude(5, 25)),
    "claude-opus-4-7": replace(_CLAUDE_4_7, price=_claude(5, 25)),
    "claude-opus-4-6": replace(_CLAUDE_4_6, output_limit=128_000, price=_claude(5, 25)),
    "claude-opus-4-5": replace(_BUDGET_SCHEMA, efforts=_LOW_TO_HIGH, price=_claude(5, 25)),
    "claude-opus-4-1": replace(_BUDGET, output_limit=32_000, price=_claude(15, 75)),
    "claude-opus-4-0": replace(_CLAUDE_4, output_limit=32_000, price=_claude(15, 75)),
    "claude-opus-4": replace(_CLAUDE_4, output_limit=32_000, price=_claude(15, 75)),
    "claude-sonnet-5-5": replace(_BOUND, thinking_off="between_tools", price=_claude(2, 10, 0.05)),
    "claude-sonnet-5": replace(_CLAUDE_5, price=_claude(2, 10)),
    "claude-sonnet-4-6": replace(_CLAUDE_4_6, price=_claude(3, 15)),
    "claude-sonnet-4-5": replace(_BUDGET_SCHEMA, price=_claude(3, 15)),
    "claude-sonnet-4-0": replace(_CLAUDE_4, price=_claude(3, 15)),
    "claude-sonnet-4": replace(_CLAUDE_4, price=_claude(3, 15)),
    "claude-haiku-5-5": replace(
        _CLAUDE_5,
        tail="cleared",
        price=replace(_HAIKU_5_5, long=LongPrice(over=100_000, price=_HAIKU_5_5.times(5, 5))),
    ),
    "claude-haiku-4-5": replace(_BUDGET_SCHEMA, price=_claude(1, 5)),
    "claude-3-5-haiku": replace(
        _CLAUDE, output_limit=8_192, thinking="none", temperature="always", price=_claude(0.8, 4)
    ),
}

_OPEN = ModelFacts(temperature="always")
_GROQ_SETTINGS: Mapping[str, Any] = {
    "seed": True,
    "parallel_calls": True,
    "service_tiers": ("auto", "on_demand", "flex", "performance"),
}
_OPENROUTER_SETTINGS: Mapping[str, Any] = {
    "seed": True,
    "penalties": True,
    "parallel_calls": True,
    "service_tiers": (),
}
_OPEN_THINKING = replace(_OPEN, thinking="plain", thinking_field="reasoning_content")
_GPT_OSS = replace(
    _OPEN,
    window=131_072,
    output_limit=65_536,
    tool_choice=True,
    json_mode=True,
    json_schema=True,
    thinking="plain",
    thinking_by="effort",
    efforts=_LOW_TO_HIGH,
)
_DEEPSEEK = replace(
    _OPEN_THINKING,
    window=1_000_000,
    output_limit=384_000,
    json_mode=True,
    thinking_by="effort",
    thinking_off="disabled",
    efforts=("minimal", *_TO_MAX),
    temperature="unthinking",
    penalties=True,
    stop_limit=16,
)
_DEEPSEEK_FLASH = replace(_DEEPSEEK, vision=True, price=_price(0.3, 1.2, 0.006))
_LOCAL = replace(
    _OPEN,
    window=4_096,
    output_limit=1_024,
    json_mode=True,
    json_schema=True,
    seed=True,
    penalties=True,
    stop_limit=64,
)
_LOCAL_THINKING = replace(_LOCAL, thinking="plain", thinking_field="reasoning")


def _over_openrouter(facts: ModelFacts) -> ModelFacts:
    """Return the facts of a model on OpenRouter, which offers all models over Chat Completions.

    Tools together with a JSON Schema, a cache key, service tiers and a field for thinking are not supported there.
    Thinking is turned off by the effort `none` only.
    """
    return replace(
        facts,
        api="chat",
        schema_beside_tools=False,
        thinking_off="none" if facts.thinking_off == "none" else "",
        output_parameter="max_tokens",
        thinking_field="",
        tail="kept" if facts.tail in ("kept", "cleared") else "dropped",
        cache_key=False,
        **_OPENROUTER_SETTINGS,
    )


def _over_chat(facts: ModelFacts) -> ModelFacts:
    """Return the facts of an OpenAI model over Chat Completions."""
    if facts.api == "chat":
        return facts
    return replace(facts, api="chat", output_parameter="max_completion_tokens", tail="dropped")


_OTHER_ROWS: Mapping[str, Mapping[str, ModelFacts]] = {
    "openai-chat": {"": _over_chat(_OPENAI)},
    "groq": {
        "": replace(_OPEN, **_GROQ_SETTINGS),
        "openai/gpt-oss-120b": replace(_GPT_OSS, price=_price(0.15, 0.6, 0.075), **_GROQ_SETTINGS),
        "openai/gpt-oss-20b": replace(_GPT_OSS, price=_price(0.075, 0.3, 0.0375), **_GROQ_SETTINGS),
    },
    "deepseek": {
        "": _OPEN_THINKING,
        "deepseek-flash": _DEEPSEEK_FLASH,
        "deepseek-v4-flash": _DEEPSEEK_FLASH,
        "deepseek-v4-pro": replace(_DEEPSEEK, price=_price(1.32, 3.96, 0.044)),
    },
    "openrouter": {
        "": replace(_OPEN, **_OPENROUTER_SETTINGS),
        "anthropic/claude-opus-5.5": _over_openrouter(_ANTHROPIC_ROWS["claude-opus-5-5"]),
        "anthropic/claude-sonnet-5": _over_openrouter(_ANTHROPIC_ROWS["claude-sonnet-5"]),
        "deepseek/": replace(_OPEN_THINKING, **_OPENROUTER_SETTINGS),
        "openai/gpt-6-astra": _over_openrouter(_OPENAI_ROWS["gpt-6-astra"]),
        "openai/gpt-6-sol": _over_openrouter(_OPENAI_ROWS["gpt-6-sol"]),
        "openai/gpt-6-luna": _over_openrouter(_OPENAI_ROWS["gpt-6-luna"]),
        "openai/gpt-6.1-terra": _over_openrouter(_OPENAI_ROWS["gpt-6.1-terra"]),
    },
    "ollama": {
        "": _LOCAL,
        "gpt-oss": replace(_LOCAL_THINKING, thinking_by="effort", efforts=_LOW_TO_HIGH),
        "qwen3": _LOCAL_THINKING,
        "deepseek-r1": _LOCAL_THINKING,
    },
}

FAMILIES: Mapping[str, ModelFacts] = MappingProxyType(
    {
        f"{provider}:{family}": facts
        for provider, families in {
            "openai": _OPENAI_ROWS,
            "anthropic": _ANTHROPIC_ROWS,
            **_OTHER_ROWS,
        }.items()
        for family, facts in families.items()
    }
)
"""Every row by the prefix of its family's model strings. The row `openai:` is for the remaining models of OpenAI."""


_OPENAI_PREFIX = "openai:"
_TUNED_PREFIX = "openai:ft:"
_CHAT_PREFIX = "openai-chat:"


def find_model_facts(name: str) -> ModelFacts:
    """Return the facts of a model by its model string, such as `anthropic:claude-opus-5-5`; `UNKNOWN` if it is unknown.

    The row with the longest matching prefix counts, so a dated id has the facts of its family. A tuned model
    (`openai:ft:gpt-4o:…`) has the facts of its base model without a price. A model of `openai-chat:` has the facts of
    `openai:` with another API. To change facts, use `dataclasses.replace`.
    """
    if name.startswith(_CHAT_PREFIX):
        facts = find_model_facts(_OPENAI_PREFIX + name.removeprefix(_CHAT_PREFIX))
        is_listed = facts is not FAMILIES[_OPENAI_PREFIX]
        return _over_chat(facts) if is_listed else FAMILIES[_CHAT_PREFIX]
    tuned = name.removeprefix(_TUNED_PREFIX)
    base = name if tuned == name else _OPENAI_PREFIX + tuned
    families = [family for family in FAMILIES if belongs(base, family)]
    facts = FAMILIES[max(families, key=len)] if families else UNKNOWN
    return facts if base == name or facts.price is None else replace(facts, price=None)
