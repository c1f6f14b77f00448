"""The bundle `analyst`: a table in, a chart and a report out, by programs that run in isolation."""

from __future__ import annotations

import subprocess

import pytest

from loopline import Attachment, Harness
from loopline.testing import Call, Say, ScriptedModel
from loopline.timeline import ProxiedCall, ToolResult
from tests.docs.pages import ROOT

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
