"""What may not be stored is in no file of a store, in no event, in no prompt and in no log, wherever it came from."""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from loopline import (
    Agent,
    Attachment,
    BaseWorkflow,
    Bundle,
    Harness,
    ToolContext,
    TurnPayload,
    TurnResult,
    models,
    tool,
)
from loopline import timeline as tl
from loopline.errors import AttachmentError, ConflictError, PropertyError
from loopline.events import Delta, Event
from loopline.models import JsonObject
from loopline.redaction import redaction
from loopline.redaction.detectors import KINDS, LibraryRedactor
from loopline.redaction.redacted_log import RedactedLog, redact_body
from loopline.server import app
from loopline.server.bundle_host import bundle_host
from loopline.testing import Call, Say, ScriptedModel
from loopline.timeline.sources import SourceSpan
from tests.support.attachment_corpus import docx
from tests.support.echo_model import EchoModel
from tests.support.vendor_keys import VENDOR_PREFIXES

KEY = "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA7planted\nq83vEiM0VniavN7w\n-----END RSA PRIVATE KEY-----"
PLANTED = {
    "message": "ann.lee@planted.example",
    "followup": "4111 1111 1111 1111",
    "file": "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
    "result": "AKIAIOSFODNN7PLANTED",
    "result of a key": "MIIEpAIBAAKCAQEA7planted",
    "output": "xoxb-123456789012-planted0token",
    "progress": "536-90-4399",
    "event": "postgres://app:plantedpass@db",
    "answer": "ben@planted.example",
    "arguments": "+49 30 9018201",
    "thought": "sk_live_abcdefghijklmnopqrstuvwx",
}
SECRETS = tuple(PLANTED.values())
KINDS_SET: dict[str, models.Json] = {"privacy.redact": ["secret", "email", "card", "phone", "ssn"]}


@tool(effect="read")
async def look(question: str, context: ToolContext) -> str:
    """Look something up."""
    assert "9018201" not in question
    context.progress(f"asked with {PLANTED['progress']}")
    await context.emit("asked", {"url": PLANTED["event"]})
    return f"The key is {PLANTED['result']}.\n{KEY}\n" + "tea " * 20_000 + PLANTED["output"]


def model() -> ScriptedModel:
    """A model that writes secrets in its call, its thoughts and its answer."""
    return ScriptedModel(
        [
            Call("shop.look", question=f"Who has {PLANTED['arguments']}?"),
            Say(
                f"Write to {PLANTED['answer']},\nor to {PLANTED['message']} now.",
                thinking=f"It was {PLANTED['thought']}.",
            ),
            Say("Done."),
        ]
    )


def traces(texts: Sequence[str]) -> list[str]:
    return [name for name, secret in PLANTED.items() if any(secret in text for text in texts)]


def files(folder: Path) -> dict[str, bytes]:
    return {f"{path}": path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def test_a_planted_secret_is_nowhere(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "loopline")
    events, scripted = list[Event](), model()
    harness = Harness.open(
        Bundle(id="shop", tools=[look]),
        store=f"sqlite:///{tmp_path}/talk.db",
        model=scripted,
        properties=KINDS_SET | {"react.memsearch": True},
    )
    async with harness:
        talk = harness.conversation("c1")
        note = Attachment("note.txt", f"token {PLANTED['file']}\n".encode())
        stream = talk.stream(f"I am {PLANTED['message']}.", attachments=[note])
        async for event in stream:
            events.append(event)
        card = f"My card is {PLANTED['followup']}."
        result, again = [await (await talk.submit(card, key="k")).result() for _ in range(2)]
        await talk.feedback("turn_1", "ok", text=f"from {PLANTED['message']}")
        found = await harness.memory.search("card", user="local")
        document = json.dumps(await talk.export(), ensure_ascii=False)
        title = (await harness.log.conversations())[0].title
    assert again == result
    ends = [
        event.body
        for event in events
        if isinstance(event, tl.Block) and isinstance(event.body, tl.Exit)
    ]
    assert [end.reason for end in ends] == ["complete"]
    leaks = [
        (what, Path(name).name)
        for name, data in files(tmp_path).items()
        for what, secret in PLANTED.items()
        if secret.encode() in data
    ]
    assert leaks == []
    prompts = [f"{request.messages}" for request in scripted.requests]
    assert traces([*prompts, document, title, f"{found}", caplog.text]) == []
    assert traces([f"{event}" for event in events]) == []
    deltas = [event for event in events if isinstance(event, Delta)]
    heard = "".join(delta.text for delta in deltas if delta.channel == "answer")
    assert heard == "Write to [redacted email],\nor to [redacted email] now."
    assert {"progress", "custom"} <= {delta.type for delta in deltas} | {
        "custom" for event in events if isinstance(event, tl.Block) and event.type == "event.custom"
    }


async def test_a_document_whose_text_may_not_be_stored_is_refused() -> None:
    bundle, scripted = Bundle(id="shop"), ScriptedModel([Say("Seen.")])
    async with Harness.open(
        bundle, store="memory:", model=scripted, properties=KINDS_SET
    ) as harness:
        talk = harness.conversation("c1")
        for file in (
            Attachment("letter.docx", docx(f"Ann: {SECRETS[0]}")),
            Attachment(f"{SECRETS[0]}.txt", b"tea"),
        ):
            with pytest.raises(AttachmentError, match="may not be stored here"):
                await talk.say("Look!", attachments=[file])
        assert await talk.blocks() == []
        assert (await talk.say("Look!", attachments=[Attachment("letter.docx", docx("Tea"))])).ok


async def test_a_key_that_was_used_for_another_text_is_still_a_conflict() -> None:
    scripted = ScriptedModel([Say("Seen.")])
    async with Harness.open(
        Bundle(id="shop"), store="memory:", model=scripted, properties=KINDS_SET
    ) as harness:
        talk = harness.conversation("c1")
        await (await talk.submit(f"I am {SECRETS[0]}.", key="k")).result()
        with pytest.raises(ConflictError):
            await talk.submit("I am Ben.", key="k")


async def test_without_the_property_a_text_is_stored_as_it_is() -> None:
    scripted = ScriptedModel([Say("Seen.")])
    async with Harness.open(Bundle(id="shop"), store="memory:", model=scripted) as harness:
        talk = harness.conversation("c1")
        await talk.say(f"I am {SECRETS[0]}.")
        assert SECRETS[0] in f"{(await talk.blocks())[0].body}"


async def test_an_unknown_kind_is_an_error() -> None:
    scripted = ScriptedModel([])
    with pytest.raises(PropertyError, match="redact has 'names'"):
        async with Harness.open(
            Bundle(id="shop"),
            store="memory:",
            model=scripted,
            properties={"privacy.redact": ["names"]},
        ):
            raise AssertionError


REDACTOR = LibraryRedactor(KINDS)


@pytest.mark.parametrize(
    "secret",
    [
        *(KEY if "MII" in secret else secret for secret in SECRETS),
        "DE89 3704 0044 0532 0130 00",
        "10.20.30.40",
    ],
)
def test_every_kind_is_replaced_by_a_mark(secret: str) -> None:
    redacted = redaction.redact_text(REDACTOR, f"before {secret} behind")
    assert secret not in redacted
    assert redacted.startswith("before ")
    assert "[redacted " in redacted


RANDOM = "a1B2" * 15


@pytest.mark.parametrize(
    "prefix", [prefix for prefixes in VENDOR_PREFIXES.values() for prefix in prefixes]
)
def test_a_key_of_every_vendor_is_replaced_in_prose_code_and_urls(prefix: str) -> None:
    key = prefix + RANDOM
    for text in (f"Use {key} now.", f"KEY={key}", f"https://a.example/?key={key}&b=1", f"'{key}'"):
        redacted = redaction.redact_text(REDACTOR, text)
        assert "[redacted secret]" in redacted
        assert "B2a1B2" not in redacted
    assert "B2a1B2" not in json.dumps(redaction.redact_json(REDACTOR, {"text": f"a\n{key}"}))


@pytest.mark.parametrize(
    "text",
    [
        "sk-toggleable-content-arrow-of-scikit-learn",
        "a risk-based-approach-2024-edition",
        "hf_hub_download, npm_config_registry and glow-in-the-dark-paint-2",
        "hooks.slack.com/services",
    ],
)
def test_a_name_that_only_begins_like_a_key_stays(text: str) -> None:
    assert redaction.redact_text(LibraryRedactor(["secret"]), text) == text


@pytest.mark.parametrize(
    "escaped",
    [
        "ann\\u0040planted.example",
        "x\\nann@planted.example",
        "x\\u000aann@planted.example",
        "x\\uff1aann@planted.example",
    ],
)
def test_an_escape_of_json_hides_nothing_and_stays_whole(escaped: str) -> None:
    redacted = redaction.redact_text(REDACTOR, f'{{"text": "{escaped}"}}')
    assert "planted" not in redacted
    assert "[redacted email]" in json.loads(redacted)["text"]


def test_a_block_of_pem_that_never_ends_is_released_line_by_line_behind_its_first_part() -> None:
    begin, line = "-----BEGIN RSA PRIVATE KEY-----\n", f"{SECRETS[0]}\n"
    stream = redaction.RedactedStream(REDACTOR)
    assert stream.feed(begin + line) == ""
    released = stream.feed(line * (redaction.KEY_CHARACTERS // len(line)))
    assert released != ""
    assert stream.feed(line) == "[redacted email]\n"
    assert SECRETS[0] not in released


@pytest.mark.parametrize("part", [{"text": f"ask {SECRETS[0]}"}, {SECRETS[0]: "text"}])
def test_reasoning_that_a_provider_signs_is_dropped_if_it_may_not_be_stored(
    part: dict[str, models.Json],
) -> None:
    harmless: dict[str, models.Json] = {"type": "thinking", "signature": "c2lnbmVk"}
    decision = tl.Decision(
        model="m",
        stop_reason="end",
        discarded=f"from {SECRETS[0]}",
        echo=models.ReasoningReplay(wire="anthropic", parts=(harmless,)),
    )
    redacted = redact_body(REDACTOR, decision)
    assert isinstance(redacted, tl.Decision)
    assert (redacted.echo, redacted.discarded) == (decision.echo, "from [redacted email]")
    signed = structs.replace(
        decision, echo=models.ReasoningReplay(wire="anthropic", parts=(harmless, part))
    )
    dropped = redact_body(REDACTOR, signed)
    assert isinstance(dropped, tl.Decision)
    assert dropped.echo is None


class Digits:
    def redact(self, text: str) -> str:
        return re.sub("[0-9]", "#", text)


NUMBERED: JsonObject = {"type": "integer", "minimum": 10}
SCHEMA = models.OutputSchema(name="int", schema=NUMBERED)
PROMPT = tl.UserPrompt(
    text="call 10",
    sender=tl.Sender(bundle="shop2", version="a1"),
    settings={"seed": 10},
    output=SCHEMA,
    tools=(tl.ClientTool(name="pick", parameters=NUMBERED),),
)
AT = datetime(2030, 1, 1, tzinfo=UTC)
WAITING = tl.ScheduledMessage(id="s1", at=AT, prompt=PROMPT, every="0 9 * * *", zone="Etc/GMT+1")
RULE = tl.ApprovalRule(rule_id="rule_1", tool="pay", bundle="shop2", arguments={"to": "10"})
PENDING = tl.ToolPending(
    call_id="c1", kind="question", question="10?", digest="a1", after=("c1",), form=NUMBERED
)
BEGUN: JsonObject = {
    "owner": "m:1:2:3",
    "until": AT.isoformat(),
    "tool": "t",
    "again": {"to": "10"},
}
STARTED = tl.CustomEvent(name=tl.BACKGROUND_STARTED, data=BEGUN, call_id="c1")


@pytest.mark.parametrize(
    ("body", "stored"),
    [
        (PROMPT, structs.replace(PROMPT, text="call ##")),
        (
            tl.Schedule(messages=(WAITING,)),
            tl.Schedule(
                messages=(structs.replace(WAITING, prompt=structs.replace(PROMPT, text="call ##")),)
            ),
        ),
        (RULE, structs.replace(RULE, arguments={"to": "##"})),
        (PENDING, structs.replace(PENDING, question="##?")),
        (STARTED, structs.replace(STARTED, data={**BEGUN, "again": {"to": "##"}})),
        (
            tl.StepEnded(name="price 1", value='{"euros":10,"of":"tea 1"}'),
            tl.StepEnded(name="price 1", value='{"euros":"##","of":"tea #"}'),
        ),
        (tl.StepEnded(name="a", error="10"), tl.StepEnded(name="a", error="##")),
    ],
)
def test_names_and_configuration_stay_and_the_result_of_a_step_stays_json(
    body: tl.Body, stored: tl.Body
) -> None:
    assert redact_body(Digits(), body) == stored


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ('{"n": 4111111111111111, "m": 5}', '{"n": "[redacted card]", "m": 5}'),
        ('{"n":4111111111111111}', '{"n":"[redacted card]"}'),
        ('{"s": "{\\"n\\": 4111111111111111}"}', '{"s": "{\\"n\\": [redacted card]}"}'),
        ("n: 4111111111111111, m", "n: [redacted card], m"),
    ],
)
def test_the_mark_for_a_number_in_the_json_of_a_reply_is_a_text(text: str, stored: str) -> None:
    assert redaction.redact_text(REDACTOR, text) == stored
    stream = redaction.RedactedStream(REDACTOR)
    assert "".join([*map(stream.feed, text), stream.close()]) == stored


@pytest.mark.parametrize(("native", "as_json"), [(True, False), (False, True), (False, False)])
async def test_a_call_with_a_redacted_number_is_made_in_every_protocol(
    native: bool, as_json: bool
) -> None:
    called = list[str]()

    @tool(effect="read")
    def find(card: str) -> str:
        """Find a card."""
        called.append(card)
        return "found"

    script = [Say("", Call("shop.find", card=4111111111111111)), Say("Done.")]
    scripted = ScriptedModel(script, tool_call=native, json_mode=as_json)
    async with Harness.open(
        Bundle(id="shop", tools=[find]), store="memory:", model=scripted, properties=KINDS_SET
    ) as harness:
        assert (await harness.conversation("c1").say("go")).answer == "Done."
    assert called == ["[redacted card]"]


async def test_a_turn_with_redacted_steps_is_resumed(tmp_path: Path) -> None:
    def find() -> models.Json:
        return {"card": 4111111111111111}

    class Shop(BaseWorkflow):
        agents = (Agent(name="clerk", description="Asks."),)

        async def process(self, payload: TurnPayload) -> TurnResult:
            found = await self.step("find", find)
            await self.run("clerk", "first")
            await self.run("clerk", "second")
            return await self.answer(f"{found}")

    @tool
    def ask(context: ToolContext) -> str:
        """Ask."""
        context.ask_user("Which?")

    said = "It is 4111 1111 1111 1111."
    async with Harness.open(
        Bundle(id="shop", workflow=Shop, tools=[ask]),
        store=f"sqlite:///{tmp_path}/talk.db",
        model=ScriptedModel([Say(said), Call("shop.ask"), Say("So.")]),
        properties=KINDS_SET,
    ) as harness:
        talk = harness.conversation("c1")
        asked = await talk.say("go")
        done = await talk.resume({asked.pending[0].call_id: "this one"})
    assert done.answer == "{'card': '[redacted card]'}"


def test_a_number_in_json_is_replaced_too() -> None:
    assert redaction.redact_json(REDACTOR, {"card": 4111111111111111, "n": 12}) == {
        "card": "[redacted card]",
        "n": 12,
    }


def test_keys_that_become_equal_keep_their_values() -> None:
    ages: JsonObject = {"bob@example.com": 1, "n": 2, "eve@example.org": 3, "ann@example.net": 4}
    redacted = redaction.redact_object(REDACTOR, ages)
    assert redacted == {
        "[redacted email]": 1,
        "n": 2,
        "[redacted email] 3": 3,
        "[redacted email] 4": 4,
    }
    assert redaction.redact_object(REDACTOR, redacted) == redacted


texts = st.lists(
    st.one_of(
        st.sampled_from([*SECRETS, KEY, "\n", " ", ".", "-----BEGIN ", "-----END ", '"', "\\n"]),
        st.text(max_size=8),
    ),
    max_size=12,
).map("".join)


@given(texts, st.lists(st.integers(0, 200), max_size=8))
def test_a_stream_releases_what_the_whole_text_becomes(text: str, cuts: list[int]) -> None:
    stream, at, released = redaction.RedactedStream(REDACTOR), 0, ""
    for cut in [*sorted(cuts), len(text)]:
        released += stream.feed(text[at:cut]) if at < cut else ""
        at = max(at, cut)
    assert released + stream.close() == redaction.redact_text(REDACTOR, text)


@given(texts)
def test_what_was_redacted_stays_as_it_is(text: str) -> None:
    redacted = redaction.redact_text(REDACTOR, text)
    assert redaction.redact_text(REDACTOR, redacted) == redacted


class CountingRedactor:
    def __init__(self) -> None:
        self.characters = 0

    def redact(self, text: str) -> str:
        self.characters += len(text)
        return text.replace("secret", "[redacted]")


class ThreadRedactor:
    def __init__(self) -> None:
        self.threads = set[int]()

    def redact(self, text: str) -> str:
        self.threads.add(threading.get_ident())
        return text


@pytest.mark.parametrize(("characters", "stays"), [(4_900, True), (5_100, False)])
async def test_a_long_text_is_not_redacted_on_the_event_loop(characters: int, stays: bool) -> None:
    redactor = ThreadRedactor()
    log = RedactedLog(tl.MemoryLog(), redactor)
    entries = [tl.Entry(body=tl.UserPrompt(text="x" * characters), turn=tl.NEW_TURN)]
    await log.append(tl.ConversationKey(name="c"), entries, seen=0)
    assert redactor.threads != set()
    assert (threading.get_ident() in redactor.threads) == stays


def test_parts_of_sources_are_moved_in_one_pass_over_the_text() -> None:
    page, redactor = "a secret line\n" * 40, CountingRedactor()
    text = "".join(f"title {number}\n{page}" for number in range(100))
    starts = [start for start in range(len(text)) if text.startswith(f"\n{page}", start - 1)]
    spans = [SourceSpan(sid=1, start=start, end=start + len(page)) for start in starts]
    body = tl.ToolResult(
        call_id="c1", tool="web.fetch", status="ok", text=text, source_spans=tuple(spans)
    )
    redacted = redact_body(redactor, body)
    assert isinstance(redacted, tl.ToolResult)
    assert len(redacted.source_spans) == 100
    assert {redacted.text[span.start : span.end] for span in redacted.source_spans} == {
        page.replace("secret", "[redacted]")
    }
    assert redactor.characters < 4 * len(text)


@pytest.mark.parametrize("protocol", ["native", "json", "tagged", "thought_action"])
async def test_what_is_heard_is_what_is_stored_in_every_protocol(
    protocol: models.ProtocolName,
) -> None:
    text = f"Ask {SECRETS[0]}.\n{KEY}\nOr call {PLANTED['arguments']}, \\n or nobody."
    bundle, scripted = Bundle(id="shop"), ScriptedModel([Say(text)])
    async with Harness.open(
        bundle, store="memory:", model=scripted, properties=KINDS_SET
    ) as harness:
        talk = harness.conversation("c1")
        events = [event async for event in talk.stream("Whom?", protocol=protocol)]
    heard = [e.text for e in events if isinstance(e, Delta) and e.channel == "answer"]
    stored = [
        e.body.text for e in events if isinstance(e, tl.Block) and isinstance(e.body, tl.Completion)
    ]
    expected = "Ask [redacted email].\n[redacted secret]\nOr call [redacted phone], \\n or nobody."
    assert ("".join(heard), stored) == (expected, [expected])


class OwnModel(BaseWorkflow):
    """A loop with a model of the bundle's own code."""

    async def process(self, payload: TurnPayload) -> TurnResult:
        own = ScriptedModel([Say(f"Ask {SECRETS[0]}.")])
        react = await self.build_react(scratchpad=self.scratchpad, model=own)
        return await react.run(payload)


async def test_nothing_is_heard_of_a_model_of_the_bundles_own_code_either() -> None:
    bundle = Bundle(id="shop", workflow=OwnModel)
    async with Harness.open(
        bundle, store="memory:", model=EchoModel(), properties=KINDS_SET
    ) as harness:
        talk = harness.conversation("c1")
        events = [event async for event in talk.stream("Whom?")]
    heard = "".join(e.text for e in events if isinstance(e, Delta) and e.channel == "answer")
    assert heard == "Ask [redacted email]."


async def test_bundles_that_share_a_memory_have_each_its_own_redaction() -> None:
    text = "write to ann@example.org"
    private = Bundle(
        id="private", instructions="You help.", configuration={"privacy": {"redact": ["email"]}}
    )
    plain = Bundle(id="plain", instructions="You help.")
    for bundles in ([private, plain], [plain, private]):
        host = bundle_host(app(bundles, store="memory:", model=EchoModel()))
        await host.open()
        talks = [host.harness(bundle.id).conversation(bundle.id) for bundle in bundles]
        for talk in talks:
            await talk.say(text)
        stored = {talk.conversation.name: text in str(await talk.blocks()) for talk in talks}
        assert stored == {"private": False, "plain": True}
        assert len(await host.log.conversations()) == len(bundles)
        await host.close()


class EndlessModel:
    """Streams lines until nobody wants them, and says whether its stream was closed."""

    name = "endless"
    capabilities = models.Capabilities(window=100_000)
    is_closed = False

    async def stream(self, prompt: models.Prompt) -> AsyncIterator[models.TextDelta | models.Reply]:
        del prompt
        try:
            while True:
                yield models.TextDelta(text="tea\n")
        finally:
            self.is_closed = True


async def test_a_reply_that_is_given_up_is_closed_at_its_provider_too() -> None:
    model = EndlessModel()
    redacting = redaction.RedactingModel(model, LibraryRedactor(["email"]))
    pieces = redacting.stream(models.Prompt(system="", messages=(), tools=()))
    assert await anext(pieces) == models.TextDelta(text="tea\n")
    assert isinstance(pieces, AsyncGenerator)
    await pieces.aclose()
    assert model.is_closed
