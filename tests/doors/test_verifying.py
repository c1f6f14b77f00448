"""How the support of an answer is put in words."""

from __future__ import annotations

import pytest

from loopline import BaseWorkflow, Bundle, Harness, Output, TurnPayload, TurnResult, tool
from loopline import timeline as tl
from loopline.cli.timeline_reports import verification_summary, verify_answers
from loopline.clock import SystemClock
from loopline.models import ToolCall
from loopline.redaction.redaction import Redactor
from loopline.testing import Call, ScriptedModel
from loopline.tools import MemoryWeb, WebPage

SOURCES = {
    1: tl.Source(
        url="https://one.example", text="The kettle boils 3 cups of water in two minutes."
    ),
    2: tl.Source(url="https://two.example"),
}
TEXTS = {sid: [source.text] for sid, source in SOURCES.items()}


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("", "it says nothing"),
        ("The kettle boils water. [[S:1]]", "1 supported"),
        ("The kettle boils 4 cups of water. [[S:1]] So.", "1 weak · 1 no source"),
        ("Elephants never forget. [[S:1]] Nor do we. [[S:2]]", "1 unsupported · 1 no text kept"),
        ("It is so. [[S:7]]", "1 no source · cites S:7, which is not there"),
        ("It is. [[S:7]] Or? [[S:8]]", "2 no source · cites S:7,8, which are not there"),
    ],
)
def test_an_answer_is_summed_up_in_a_line(answer: str, message: str) -> None:
    assert verification_summary(tl.verify(answer, SOURCES, TEXTS)) == message


def test_every_answer_of_a_turn_is_compared_with_what_the_pool_holds_now() -> None:
    bodies: list[tuple[int, tl.Body]] = [
        (1, tl.Completion(text="The kettle boils water. [[S:1]]")),
        (1, tl.SourceAdded(sid=1, source=SOURCES[1])),
        (2, tl.Completion(text="Nothing.")),
    ]
    timeline = tl.Timeline(
        tl.Block(seq=seq, turn=turn, round=0, n=1, ts=SystemClock().now(), term=1, body=body)
        for seq, (turn, body) in enumerate(bodies, start=1)
    )
    assert [
        (verified_answer.turn_id, verification_summary(verified_answer.report))
        for verified_answer in verify_answers(timeline, None)
    ] == [("turn_1", "1 supported"), ("turn_2", "1 no source")]
    assert [verified_answer.turn_id for verified_answer in verify_answers(timeline, 2)] == [
        "turn_2"
    ]


LONG = WebPage(
    url="https://tea.example/long",
    title="Green tea",
    text=f"{'About tea. ' * 200}\nGreen tea is steeped at seventy degrees for two minutes.",
)
SHORT = WebPage(url="https://tea.example/short", title="Short", text="Tea is green.")
QUOTING = WebPage(
    url="https://tea.example/quoting",
    title="Quoting",
    text=f"So.\n\n[[S:1]] Short — {SHORT.url}\nElephants drink coffee.",
)
WEB = MemoryWeb([LONG, SHORT, QUOTING])
TOOLS_SPECS = [{"builtin": "web_search", "port": WEB}, {"builtin": "web_fetch", "port": WEB}]


class Searcher(BaseWorkflow):
    """A loop with a web of three pages."""

    async def process(self, payload: TurnPayload) -> TurnResult:
        react = await self.build_react(tools_module=__name__)
        return await react.run(payload)


@tool(effect="read")
def look(text: str, signed: bool = False) -> Output:
    """Look at a page that changes."""
    lead = "Ann Example, " * 9 + "\n" if signed else ""
    return Output(lead + text, sources=[tl.Source(url="https://tea.example", text=text)])


async def supports(
    *script: ToolCall | str, bundle: Bundle, redactor: Redactor | None = None
) -> list[tl.Support]:
    """Return how each cited sentence of the answer is supported."""
    model = ScriptedModel([*script])
    async with Harness.open(bundle, store="memory:", model=model, redactor=redactor) as harness:
        talk = harness.conversation("c1")
        await talk.say("How?")
        [verified] = verify_answers(tl.Timeline(await talk.blocks()), None)
    return [sentence.together.support for sentence in verified.report.cited]


async def test_a_sentence_of_a_page_that_was_first_a_hit_is_compared_with_the_whole_page() -> None:
    assert await supports(
        Call("web_search", query="steeped"),
        Call("web_fetch", url=LONG.url),
        "Green tea is steeped at seventy degrees for two minutes. [[S:1]] Elephants forget. [[S:1]]",
        bundle=Bundle(id="searcher", workflow=Searcher),
    ) == ["supported", "unsupported"]


async def test_a_page_that_changed_is_compared_as_it_was_and_as_it_is() -> None:
    assert await supports(
        Call("looker.look", text="Kettles boil water."),
        Call("looker.look", text="Elephants drink coffee."),
        "Kettles boil water. [[S:1]] Elephants drink coffee. [[S:1]] Nobody sleeps here. [[S:1]]",
        bundle=Bundle(id="looker", tools=[look]),
    ) == ["supported", "supported", "unsupported"]


async def test_a_page_that_quotes_the_mark_of_another_source_says_nothing_for_it() -> None:
    assert await supports(
        Call("web_fetch", url=SHORT.url),
        Call("web_fetch", url=QUOTING.url),
        "Elephants drink coffee. [[S:1]] Elephants drink coffee. [[S:2]]",
        bundle=Bundle(id="searcher", workflow=Searcher),
    ) == ["unsupported", "supported"]


class Shortening:
    """A redactor that replaces a name by something shorter."""

    def redact(self, text: str) -> str:
        """Return the text without the name."""
        return text.replace("Ann Example", "A.")


async def test_a_part_of_a_result_is_found_when_what_is_before_it_was_redacted() -> None:
    assert await supports(
        Call("looker.look", text="Kettles boil water."),
        Call("looker.look", text="Elephants drink coffee.", signed=True),
        "Elephants drink coffee. [[S:1]] Nobody sleeps here. [[S:1]]",
        bundle=Bundle(id="looker", tools=[look]),
        redactor=Shortening(),
    ) == ["supported", "unsupported"]
