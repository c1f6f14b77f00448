"""A search also looks for the words of an answer that a model imagines."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence

from loopline import BaseWorkflow, Bundle, Harness, TurnPayload, TurnResult
from loopline.crew import Hyde, Quality
from loopline.errors import ModelError
from loopline.knowledge import Passage
from loopline.models import Prompt, Reply, TextDelta, Usage
from loopline.testing import Call, FakeClock, Say, ScriptedModel
from loopline.timeline import SearchExpanded, ToolResult

IMAGINED = "The samovar is heated with charcoal. Charcoal burns in its pipe; Samovar tea is strong."


class Fast(ScriptedModel):
    """A model with the role `fast`."""

    name = "fast"


async def test_a_memory_search_finds_what_only_the_imagined_answer_names() -> None:
    model = ScriptedModel(
        [Say("Ok."), Call("react.memsearch", query="How is that urn made hot?"), "By charcoal."]
    )
    fast = Fast([], aux={"search": [Say(IMAGINED, usage=Usage(input_tokens=7))]})
    bundle = Bundle(id="tea", quality=Quality(hyde=Hyde(keywords=3)))
    models = {"general": model, "fast": fast}
    async with Harness.open(
        bundle,
        store="memory:",
        model=models,
        clock=FakeClock(),
        properties={"react.memsearch": True},
    ) as harness:
        talk = harness.conversation("c")
        await talk.say("I bought charcoal.")
        result = await talk.say("How?")
        bodies = [block.body for block in await talk.blocks()]
    [found] = [body.text for body in bodies if isinstance(body, ToolResult)]
    [expanded] = [body for body in bodies if isinstance(body, SearchExpanded)]
    assert "I bought charcoal." in found
    assert (expanded.query, expanded.hypothesis) == ("How is that urn made hot?", IMAGINED)
    assert expanded.keywords == ("samovar", "charcoal", "heated")
    assert json.loads(found.splitlines()[0])["hits"][0]["source_query"].endswith(
        "samovar charcoal heated"
    )
    assert result.usage.input_tokens == expanded.usage.input_tokens == 7


class Searching(BaseWorkflow):
    """A loop whose knowledge search tells what it was asked."""

    queries: Sequence[str] = ()

    async def process(self, payload: TurnPayload) -> TurnResult:
        async def search(query: str, *, limit: int = 5) -> list[Passage]:
            del limit
            QUERIES.append(query)
            return []

        react = await self.build_react(knowledge_space_fn=search)
        return await react.run(payload)


QUERIES = list[str]()


async def searched(fast: Fast | Broken, query: str = "hot urn") -> list[str]:
    """Return what the knowledge search was asked."""
    QUERIES.clear()
    model = ScriptedModel([Call("react.search_knowledge", query=query), "Ok."])
    bundle = Bundle(id="tea", workflow=Searching, quality=Quality(hyde=Hyde()))
    models = {"general": model, "fast": fast}
    async with Harness.open(bundle, store="memory:", model=models, clock=FakeClock()) as harness:
        assert (await harness.conversation("c").say("How?")).answer == "Ok."
    return list(QUERIES)


class Broken(ScriptedModel):
    """A model that cannot be asked."""

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        """Fail."""
        raise ModelError("no network")
        yield Reply()


async def test_a_knowledge_search_keeps_its_own_words_first() -> None:
    [query] = await searched(Fast([], aux={"search": [IMAGINED]}), "Samovar")
    assert query == "Samovar charcoal heated burns pipe tea"


async def test_without_an_imagined_answer_the_search_is_as_it_was() -> None:
    assert await searched(Fast([], aux={"search": [""]})) == ["hot urn"]
    assert await searched(Broken([])) == ["hot urn"]
