"""The bundle `research`: it searches and reads pages of a site, and its answer waits until the report is written."""

from __future__ import annotations

from loopline import Harness
from loopline.models import Json
from loopline.testing import Call, ScriptedModel
from tests.docs.pages import ROOT
from tests.web.loopback_site import PUBLIC, Answer, as_json, site

ARTICLE = """<!doctype html><html><head><title>Green tea</title></head><body><article><h1>Green tea</h1>
<p>Green tea is brewed at seventy degrees, because hotter water makes it bitter, and it is left for two minutes.</p>
<p>Old leaves are steeped for longer than new ones, as every grower of the region says.</p></article></body></html>"""
REPORT = "# How hot is green tea brewed?\n\n- At seventy degrees. [[S:1]]\n"


async def test_a_question_becomes_a_cited_answer_and_a_report() -> None:
    hit = {"title": "Green tea", "content": "How to brew it.", "url": "https://tea.example/"}
    with site({"/search": as_json({"results": [hit]}), "/tea": Answer(ARTICLE)}) as web:
        model = ScriptedModel(
            [
                Call("web_search", query="green tea temperature"),
                Call("web_fetch", url=f"{web.url}/tea"),
                "At seventy degrees. [[S:2]]",
                Call("react.write", path="outputs/report.md", content=REPORT),
                "At seventy degrees. [[S:2]] The report is in outputs/report.md.",
            ]
        )
        properties: dict[str, Json] = {
            "web.search": f"searxng:{web.url}",
            "web.allow": [f"{PUBLIC}/32"],
        }
        async with Harness.open(
            ROOT / "bundles/research", store="memory:", model=model, properties=properties
        ) as harness:
            result = await harness.conversation("c1").say("How hot is green tea brewed?")
            report = await result.files[0].read()
    assert result.ok
    assert result.answer.endswith("The report is in outputs/report.md.")
    assert [source.title for source in result.sources] == ["Green tea"]
    assert (result.files[0].name, report.decode()) == ("report.md", REPORT)
    assert "Write outputs/report.md before you answer." in str(model.requests[3])


async def test_an_answer_without_pages_needs_no_report() -> None:
    model = ScriptedModel(["I am a researcher."])
    async with Harness.open(ROOT / "bundles/research", store="memory:", model=model) as harness:
        result = await harness.conversation("c1").say("Who are you?")
    assert (result.answer, result.files) == ("I am a researcher.", ())
