"""An Anthropic-like server that binds its thinking to all that stood before it, and keeps a cache.

Sources, read on 2026-11-20: platform.claude.com/docs/build-with-claude/preserved-thinking and its page
"Prefix checks on thinking blocks"; "Prompt caching". A block is bound to the model, the tools, the
system and every message and block before it. A thinking block of another model is passed over, as the
page says. What it leaves open: here a cache_control is no change, nor is the order of keys, nor whether
a text is a string or a block of its own.
"""

from __future__ import annotations

import hmac
import json
from base64 import b64decode, b64encode
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Literal

from loopline.clock import Clock, SystemClock
from loopline.models.json import JsonObject
from loopline.prompt.caching import AnthropicCache, CacheOutcome, Part, SentRequest, minimum_tokens
from tests.support.peers.anthropic_like import Anthropic, error_of
from tests.support.peers.anthropic_messages import message
from tests.support.peers.anthropic_prompt import Prompt, Refused, parse, without_markers
from tests.support.peers.anthropic_replies import Block, Redacted, Says, Thinking, Usage, block_of
from tests.support.peers.anthropic_rules import lifetime, problems, thinks
from tests.support.peers.behaviors import Behaviour, answering
from tests.support.peers.http_server import Peer, Request, serving
from tests.support.peers.streams import Reply, document

CLEAR_AT = "mid-conversation-system-clear-at-2026-08-21"
KEY = b"only this server knows it"
BYTES_OF_A_TOKEN = 4


@dataclass(slots=True)
class Prefix:
    """All that was said so far, as one digest."""

    digest: str

    def extend(self, role: str, block: JsonObject) -> None:
        self.digest = sha256(f"{self.digest}{role}{canonical(block)}".encode()).hexdigest()


def canonical(block: JsonObject) -> str:
    """A text that all ways to write the block have in common."""
    return json.dumps(without_markers(block), sort_keys=True, ensure_ascii=False)


def seal(model: str, prefix: Prefix, thought: str) -> str:
    """A signature of the thought by this model behind the prefix."""
    record = {"model": model, "behind": _mac(prefix.digest), "thought": _mac(thought)}
    return b64encode(json.dumps(record).encode()).decode()


def _mac(text: str) -> str:
    return hmac.new(KEY, text.encode(), sha256).hexdigest()


def signed(blocks: tuple[Block, ...], prompt: Prompt) -> list[Block]:
    """The blocks of a reply to that prompt, thinking sealed."""
    prefix = Prefix("")
    for _, role, part in prompt.parts():
        prefix.extend(role, part)
    done: list[Block] = []
    for block in blocks:
        done.append(_sealed(block, prompt.model, prefix))
        prefix.extend("assistant", block_of(done[-1]))
    return done


def _sealed(block: Block, model: str, prefix: Prefix) -> Block:
    match block:
        case Thinking():
            return replace(block, signature=seal(model, prefix, block.text))
        case Redacted():
            return Redacted(seal(model, prefix, ""))
        case _:
            return block


def broken_seal(prompt: Prompt) -> str | None:
    """What is wrong with the first thinking block that is not as it was, or not where it was."""
    prefix = Prefix("")
    for block in (*prompt.tools, *prompt.system):
        prefix.extend("", block)
    for number, turn in enumerate(prompt.turns):
        for at, block in enumerate(turn.blocks):
            if thinks(block) and (wrong := _wrong(block, prefix, prompt.model)):
                return f"messages.{number}.content.{at}: {wrong}"
            prefix.extend(turn.role, block)
    return None


def _wrong(block: JsonObject, prefix: Prefix, model: str) -> str | None:
    kind, held = ("signature", "thinking") if block["type"] == "thinking" else ("data", "")
    text, thought = str(block.get(kind, "")), str(block.get(held, ""))
    invalid = f"Invalid `{kind}` in `{block['type']}` block"
    try:
        value: dict[str, str] = json.loads(b64decode(text, validate=True))
        by, behind, sealed_thought = value["model"], value["behind"], value["thought"]
    except (ValueError, KeyError, TypeError):
        return invalid
    if sealed_thought != _mac(thought):
        return invalid
    if by == model and behind != _mac(prefix.digest):
        return f"{invalid}. The block is bound to a different conversation."
    return None


@dataclass(slots=True)
class Signing(Anthropic):
    """Anthropic with a key and a cache for each model.

    `minimum` is the shortest prefix that is cached, in tokens; None is the model's own. A marker that
    asks for another lifetime than `ttl` is refused, for a cache here has one.
    """

    minimum: int | None = None
    ttl: Literal["5m", "1h"] = "5m"
    clock: Clock = field(default_factory=SystemClock)
    _caches: dict[str, AnthropicCache] = field(default_factory=dict[str, AnthropicCache])
    _sent: int = 0

    def refuses(self, asked: Request) -> Reply | None:
        """What breaks a rule of the wire, or a seal."""
        elsewhere = Anthropic.refuses(self, asked)
        if elsewhere is not None:
            return elsewhere
        try:
            prompt = parse(asked.body)
        except Refused as refused:
            return _refusal(str(refused))
        for problem in problems(prompt):
            return _refusal(problem)
        if b'"clear_at"' in asked.raw and CLEAR_AT not in asked.headers.get("anthropic-beta", ""):
            return _refusal("messages.clear_at: Extra inputs are not permitted")
        if any(lifetime(marker) != self.ttl for _, marker in prompt.markers()):
            return _refusal(f"this server keeps a cache for {self.ttl}")
        broken = broken_seal(prompt)
        return None if broken is None else _refusal(broken)

    def reply(self, says: Says, asked: Request) -> Reply:
        """What is scripted, sealed, with the usage that the cache comes to."""
        prompt = parse(asked.body)
        cached = self._cached(prompt)
        usage = replace(
            says.usage, input=cached.uncached, read=cached.read, written=0, written_1h=0
        )
        usage = self._written(usage, cached.written)
        return message(says, signed(says.blocks, prompt), usage, asked)

    def _written(self, usage: Usage, tokens: int) -> Usage:
        if self.ttl == "5m":
            return replace(usage, written=tokens)
        return replace(usage, written_1h=tokens)

    def _cached(self, prompt: Prompt) -> CacheOutcome:
        if prompt.model not in self._caches:
            minimum = minimum_tokens(prompt.model) if self.minimum is None else self.minimum
            self._caches[prompt.model] = AnthropicCache(minimum=minimum, ttl=self.ttl)
        parts = tuple(
            Part(
                kind=kind,
                digest=sha256(f"{role}{canonical(block)}".encode()).hexdigest(),
                tokens=max(1, len(canonical(block)) // BYTES_OF_A_TOKEN),
            )
            for kind, role, block in prompt.parts()
        )
        points = tuple(sorted({place for place, _ in prompt.markers()}))
        self._sent += 1
        now = self.clock.now()
        sent = SentRequest(parts=parts, stable=len(parts), points=points, at=now, seq=self._sent)
        return self._caches[prompt.model].send(sent)


def _refusal(words: str) -> Reply:
    return document(error_of("invalid_request_error", words), 400)


@asynccontextmanager
async def signing(
    *behaviours: Behaviour[Says],
    minimum: int | None = None,
    ttl: Literal["5m", "1h"] = "5m",
    clock: Clock | None = None,
) -> AsyncGenerator[Peer, None]:
    """One behaviour a request that is taken, in order; then the last one again and again."""
    vendor = Signing(minimum=minimum, ttl=ttl, clock=clock or SystemClock())
    async with serving(Peer(), answering(behaviours, vendor)) as peer:
        yield peer
