"""The bundles of Loopline: `support` refunds after an approval, and `coder`, `research` and `analyst` make files."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path

import pytest

from loopline import Attachment, Harness
from loopline.models import Json, JsonObject, Prompt, ToolCall
from loopline.server import ServerSettings, app
from loopline.testing import Call, Say, ScriptedModel
from loopline.timeline import FileAdded, MemoryLog, ProxiedCall, RunChild, ToolResult
from tests.docs.pages import ROOT
from tests.support.crashing_log import Crashed, CrashingLog
from tests.support.crews import Scripts, handoff
from tests.support.live_server import in_process
from tests.support.webhook_receiver import receiving
from tests.web.loopback_site import PUBLIC, Answer, as_json, site

SUPPORT = ROOT / "bundles/support"
ORDER: JsonObject = {"customer": "ann", "item": "sencha", "price": 60.0, "refunds": {}}
REFUND = Call("support.refund", number="A-17", euros=30.0)


@pytest.fixture
def orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "orders.json"
    mine = {**ORDER, "customer": "local"}
    file.write_text(json.dumps({"A-17": ORDER, "B-2": mine}), encoding="utf-8")
    return file


def refunded(orders: Path, number: str) -> float:
    refunds: dict[str, float] = json.loads(orders.read_text("utf-8"))[number]["refunds"]
    return sum(refunds.values())


async def test_the_app_says_which_order_is_open_and_a_person_approves_the_refund(
    orders: Path,
) -> None:
    script = [Call("support.current_page"), Call("support.find_order", number="A-17"), REFUND]
    store = f"sqlite:///{orders.parent}/support.db"
    model = ScriptedModel(script)
    async with Harness.open(SUPPORT, store=store, model=model) as harness:
        talk = harness.conversation("c1", user="ann")
        asked = await talk.say("I want half of my money back.")
        assert [(call.tool, call.kind) for call in asked.pending] == [
            ("support.current_page", "client")
        ]
        paused = await talk.resume({"c1": "orders/A-17"})
        assert [call.question for call in paused.pending] == ["Refund 30.00 euros to ann?"]
    assert refunded(orders, "A-17") == 0.0
    model = ScriptedModel(["You get 30 euros back."])
    async with Harness.open(SUPPORT, store=store, model=model) as harness:
        result = await harness.conversation("c1", user="ann").resume({"c3": True})
    assert result.answer == "You get 30 euros back."
    assert refunded(orders, "A-17") == 30.0


@pytest.mark.parametrize(
    ("call", "user", "error"),
    [
        (Call("support.find_order", number="A-17"), "ben", "you have no order 'A-17'"),
        (Call("support.find_order", number="Z-1"), "ann", "you have no order 'Z-1'"),
        (Call("support.refund", number="A-17", euros=-5.0), "ann", "at most 60.00 euros"),
        (Call("support.refund", number="A-17", euros=5.0), "ben", "you have no order 'A-17'"),
    ],
)
async def test_an_order_of_another_and_a_wrong_amount_are_refused(
    call: Say, user: str, error: str, orders: Path
) -> None:
    model = ScriptedModel([call, "No."])
    async with Harness.open(SUPPORT, store="memory:", model=model) as harness:
        await harness.conversation("c1", user=user).say("Please.")
    assert error in str(model.requests[-1])
    assert refunded(orders, "A-17") == 0.0


async def test_refunds_at_once_are_all_made(orders: Path) -> None:
    both = Say(
        "",
        *[Call("support.refund", number="B-2", euros=1.0) for _ in range(4)],
        *[Call("support.refund", number="C-3", euros=1.0) for _ in range(4)],
    )
    mine: JsonObject = {**ORDER, "customer": "local"}
    await asyncio.to_thread(orders.write_text, json.dumps({"B-2": mine, "C-3": mine}), "utf-8")
    async with Harness.open(
        SUPPORT, store="memory:", model=ScriptedModel([both, "Done."])
    ) as harness:
        assert (await harness.conversation("c1").say("8 euros back.")).answer == "Done."
    assert (refunded(orders, "B-2"), refunded(orders, "C-3")) == (4.0, 4.0)


@pytest.mark.parametrize("was_made", [True, False])
async def test_a_refund_that_a_crash_cut_off_is_told_from_an_earlier_one(
    orders: Path, was_made: bool
) -> None:
    earlier: JsonObject = {**ORDER, "customer": "local", "refunds": {"earlier": 10.0}}
    before = json.dumps({"B-2": earlier})
    await asyncio.to_thread(orders.write_text, before, "utf-8")
    crashing = CrashingLog(log := MemoryLog())

    def refund(prompt: Prompt) -> ToolCall:
        del prompt
        crashing.left = 2  # the call and its start are stored, and its result is not
        return Call("support.refund", number="B-2", euros=10.0)

    async with Harness.open(
        SUPPORT, store=crashing, model=ScriptedModel([refund], strict=False)
    ) as harness:
        with pytest.raises(Crashed):
            await harness.conversation("c1").say("10 euros back.")
    assert refunded(orders, "B-2") == 20.0
    if not was_made:
        await asyncio.to_thread(orders.write_text, before, "utf-8")
    model = ScriptedModel(["Done."])
    async with Harness.open(SUPPORT, store=log, model=model) as harness:
        await harness.conversation("c1").resume()
    assert ("refunded 10.00 euros" in str(model.requests[-1].messages)) is was_made


async def test_a_webhook_tells_that_a_small_refund_was_made(orders: Path) -> None:
    model = ScriptedModel([Call("support.refund", number="B-2", euros=10.0), "Done."])
    settings = ServerSettings(
        webhook_secret=b"a secret of the desk", webhook_networks=["127.0.0.0/8"]
    )
    served = app(SUPPORT, store="memory:", model=model, settings=settings)
    async with in_process(served) as client, receiving() as receiver:
        sent = await client.post(
            "/conversations/default/default/c1/messages",
            json={"text": "10 euros back.", "background": True, "webhook": receiver.url},
        )
        assert sent.status_code == 202
        await receiver.accepted.wait()
    [(_, body)] = receiver.received
    told = json.loads(body)
    assert (told["type"], told["data"]["answer"]) == ("turn.ended", "Done.")
    assert refunded(orders, "B-2") == 10.0


APP = "def greet():\n    return 'helo'\n"
MENDED = APP.replace("helo", "hello")
BETTER = MENDED.replace("()", "() -> str")


async def test_its_agents_plan_read_write_and_refine_the_files_of_its_loop() -> None:
    stages = [{"agent": "coder", "task": "Correct"}, {"agent": "refiner", "task": "Improve"}]
    model = Scripts(
        {
            "Mend": [
                Call("react.write", path="files/app.py", content=APP),
                Call("crew.delegate", agent="planner", task="Plan it"),
                Call("crew.delegate", agent="file", task="Report"),
                Call("crew.pipeline", stages=stages),
                "Corrected; nobody has run it.",
            ],
            "Plan it": [handoff("1. Correct app.py.")],
            "Report": [
                Call("react.search_files", content_regex="helo"),
                handoff("It greets with 'helo'.", confidence="high"),
            ],
            "Correct": [
                Call("react.write", path="files/app.py", content=MENDED),
                handoff("It says hello."),
            ],
            "Improve": [
                Call("react.search_files", content_regex="hello"),
                Call("react.write", path="files/app.py", content=BETTER),
                handoff("It has a type."),
            ],
        }
    )
    async with Harness.open(ROOT / "bundles" / "coder", store="memory:", model=model) as harness:
        talk = harness.conversation("c")
        result = await talk.say("Mend it")
        bodies = [block.body for block in await talk.blocks()]
    assert result.answer == "Corrected; nobody has run it."
    assert "1 hit" in model.prompt_of("Report")
    assert "1 hit" in model.prompt_of("Improve")
    texts = [body.text for body in bodies if isinstance(body, ToolResult)]
    assert "It greets with 'helo'." in texts[2]
    assert "wrote fi:turn_1.files/app.py@2" in texts[3]
    agents = [body.agent for body in bodies if isinstance(body, RunChild) and body.reason]
    assert agents == ["planner", "file", "coder", "refiner"]
    assert [body.text for body in bodies if isinstance(body, FileAdded)] == [APP, BETTER]


async def test_agents_that_only_read_have_no_tool_that_writes() -> None:
    names = ["coder", "file", "planner", "refiner"]
    calls = [Call("crew.delegate", agent=name, task=f"Be {name}") for name in names]
    model = Scripts({"Go": [*calls, "Ok."], **{f"Be {name}": [handoff("done")] for name in names}})
    async with Harness.open(ROOT / "bundles" / "coder", store="memory:", model=model) as harness:
        await harness.conversation("c").say("Go")
    tools = {name: {spec.name for spec in model.requests[f"Be {name}"][0].tools} for name in names}
    assert all("react.search_files" in offered for offered in tools.values())
    assert not any("crew.delegate" in offered for offered in tools.values())
    writers = {name for name, offered in tools.items() if "react.write" in offered}
    assert writers == {"coder", "refiner"}


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


PYTHON = "/usr/bin/python3"
SALES = "month,currency,sold\n2024-01,USD,110\n2024-01,GBP,85\n2024-02,USD,220\n2024-02,GBP,\n"
PROGRAM = """
import matplotlib.pyplot as plt
import pandas as pd

table = pd.read_{kind}("attachments/{name}")
missing = int(table["sold"].isna().sum())
sums = table.groupby(["month", "currency"])["sold"].sum().unstack(fill_value=0)
euros = pd.DataFrame(index=sums.index)
for currency in ("USD", "GBP"):
    one = await tools.call("analyst.euros", amount=1000.0, currency=currency)
    euros[currency] = sums[currency] * float(one) / 1000
total = euros.sum(axis=1).round(0)
total.plot.bar(title="Sales in EUR", xlabel="month", ylabel="EUR")
plt.savefig("outputs/chart.png")
with open("outputs/report.md", "w") as report:
    report.write("# Sales\\n\\n" + "\\n".join(f"- {{month}}: {{value:.0f}} EUR" for month, value in total.items()))
    report.write(f"\\n\\n{{missing}} value is missing and counts as 0.\\n")
print(total.to_dict())
"""
CONTRACT = [
    {"filename": "outputs/chart.png", "description": "Sales in EUR by month, as bars"},
    {"filename": "outputs/report.md", "description": "The figures and how they were computed"},
]


def spreadsheet() -> bytes:
    """The table as a spreadsheet, made by the Python of programs."""
    code = (
        "import io, sys, pandas; data = io.BytesIO(); "
        f"pandas.read_csv(io.StringIO({SALES!r})).to_excel(data, index=False); "
        "sys.stdout.buffer.write(data.getvalue())"
    )
    return subprocess.run([PYTHON, "-c", code], capture_output=True, check=True).stdout


@pytest.mark.service
@pytest.mark.parametrize("kind", ["csv", "excel"])
async def test_a_chart_and_a_report_are_made_of_a_table_and_both_are_cited(kind: str) -> None:
    if kind == "csv":
        sales = Attachment("sales.csv", SALES.encode(), "text/csv")
    else:
        mime = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"
        sales = Attachment("sales.xlsx", spreadsheet(), mime)
    program = PROGRAM.format(kind=kind, name=sales.name)
    model = ScriptedModel(
        [
            Call("exec.python", contract=CONTRACT, program=program),
            Say("Sales doubled in dollars [[S:1]]; the figures are in the report [[S:2]]."),
        ]
    )
    async with Harness.open(ROOT / "bundles" / "analyst", store="memory:", model=model) as harness:
        talk = harness.conversation("c")
        result = await talk.say("How did sales develop, in euros?", attachments=[sales])
        bodies = [block.body for block in await talk.blocks()]
        reading = await talk.read(
            ["fi:turn_1.outputs/report.md@1", "fi:turn_1.outputs/chart.png@1"]
        )
    [report, chart] = list(reading)
    shown = [body.text for body in bodies if isinstance(body, ToolResult)]
    assert shown[0].startswith("Status: ok"), shown
    assert "{'2024-01': 200.0, '2024-02': 200.0}" in shown[0]
    assert "- 2024-02: 200 EUR" in report.text
    assert "1 value is missing" in report.text
    assert (chart.data or b"").startswith(b"\x89PNG\r\n")
    calls = [body for body in bodies if isinstance(body, ProxiedCall)]
    assert [call.arguments["currency"] for call in calls] == ["USD", "GBP"]
    assert {call.parent for call in calls} == {"c1"}
    assert [source.url for source in result.sources] == [
        "fi:turn_1.outputs/chart.png@1",
        "fi:turn_1.outputs/report.md@1",
    ]
