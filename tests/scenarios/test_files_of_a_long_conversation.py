"""What a `fi:` ref reads stays the same: after a real compaction, in a fork, a document and another process."""

from __future__ import annotations

import json
from pathlib import Path

from loopline import Bundle, Harness, Output, OutputFile, tool
from loopline.testing import Call, Say, ScriptedModel
from loopline.testing.scripted import Entry
from loopline.timeline import Checkpoint, FileAdded, RangeSummary
from tests.doors.command import Loopline

BYTES = bytes(range(256)) * 200


@tool(effect="write")
def render(number: int) -> Output:
    """Render a report."""
    files = [
        OutputFile("export/report.pdf", b"%PDF-1.4\n" + BYTES + str(number).encode()),
        OutputFile("own.txt", f"own {number}", "internal"),
    ]
    return Output(f"Report {number}: {'word ' * 1_500}", files=files)


def script(turns: int) -> list[Entry]:
    entries = list[Entry]()
    for number in range(1, turns + 1):
        path, text = "files/src/app.py", f"VERSION = {number}\n"
        entries += [
            Call("react.write", path=path, content=text),
            Call("shop.render", number=number),
            Call("react.write", path=path, content=f"{text}# {'line ' * 1_500}\n"),
            Say(f"Version {number}. {'said ' * 500}"),
        ]
    return entries


async def test_a_ref_of_a_file_reads_the_same_for_ever(tmp_path: Path) -> None:
    shop = Bundle(id="shop", tools=[render], configuration={"react": {"workspace": "latest"}})
    place = f"sqlite:///{tmp_path / 'talk.db'}"
    model = ScriptedModel(script(12), window=40_000, aux={"summary": ["Summed up."] * 20})
    async with Harness.open(shop, store=place, model=model) as harness:
        talk = harness.conversation("c", user="ann")
        for number in range(1, 13):
            assert (await talk.say(f"Version {number}, please. {'please ' * 300}")).ok
        blocks = await talk.blocks()
        files = {block.ref: block.body for block in blocks if isinstance(block.body, FileAdded)}
        seed_refs = [f"fi:turn_{number}.outputs/export/report.pdf" for number in range(1, 13)]
        first = {item.ref: item.data for item in await talk.read([*files])}
        moving = [item.ref for item in await talk.read(seed_refs)]
        fork = await talk.fork(seq=blocks[-1].seq)
        in_fork = {item.ref: item.data for item in await fork.read([*files])}
        document = await talk.export()
    assert sum(isinstance(block.body, RangeSummary) for block in blocks) > 0
    assert sum(isinstance(block.body, Checkpoint) for block in blocks) > 0
    assert len(files) == 48
    assert list(first) == list(files)
    assert all(first[ref].endswith(str(number).encode()) for number, ref in enumerate(moving, 1))
    assert moving == [f"{ref}@1" for ref in seed_refs]
    assert in_fork == first

    async with Harness.open(shop, store="memory:", model=ScriptedModel([])) as harness:
        await harness.load(document, name="copy")
        copy = harness.conversation("copy")
        assert {item.ref: item.data for item in await copy.read([*files])} == first

    command = Loopline(tmp_path)
    refs = [f"fi:turn_1.files/src/app.py@{version}" for version in (1, 2)]
    read = command("read", *refs, "--json", "-c", "c", "--user", "ann", "--store", place)
    assert read.code == 0
    texts = [item["text"] for item in json.loads(read.out)["items"]]
    assert [text.encode() for text in texts] == [first[ref] for ref in refs]
