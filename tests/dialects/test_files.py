"""A file that a turn produces is an event: a block for all, and `chat.files` in KDCube's vocabulary."""

from __future__ import annotations

from loopline import Bundle, Harness, Output, OutputFile, tool
from loopline.testing import Call, ScriptedModel
from tests.dialects.decoded_stream import heard


@tool(effect="write")
def report() -> Output:
    """Write the report, its draft, and a page of the project."""
    files = [
        OutputFile("export/report.csv", "tea\n"),
        OutputFile("draft.txt", "x", "internal"),
        OutputFile("files/a.md", "# A\n"),
    ]
    return Output("Here it is.", files=files)


async def test_a_file_that_the_user_is_offered_is_told_of() -> None:
    model = ScriptedModel([Call("shop.report"), "Done."])
    bundle = Bundle(id="shop", tools=[report])
    async with Harness.open(bundle, store="memory:", model=model) as harness:
        events = [event async for event in harness.conversation("c").stream("go")]
    told = [record for record in heard("kdcube", events) if record.data["type"] == "chat.files"]
    assert [record.event for record in told] == ["chat_step"]
    assert told[0].id
    assert told[0].data["data"] == {
        "count": 1,
        "items": [
            {
                "filename": "report.csv",
                "path": "outputs/export/report.csv",
                "version": 1,
                "mime": "text/csv",
                "size_bytes": 4,
                "visibility": "external",
                "tool_call_id": "c1",
                "rn": "ef:acme:shop:chatbot:file:ann:tea:turn_1:assistant:1/export/report.csv",
            }
        ],
    }
    plain = [record.data for record in heard("plain", events) if record.event == "file.added"]
    assert [record["ref"] for record in plain] == [
        "fi:turn_1.outputs/export/report.csv@1",
        "fi:turn_1.outputs/draft.txt@1",
        "fi:turn_1.files/a.md@1",
    ]
