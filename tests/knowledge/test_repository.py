"""What every repository promises: the tree of a commit, whatever its files are called."""

from __future__ import annotations

import pytest

from loopline.errors import KnowledgeError

from .conftest import Writer

NAMES = [
    "a.md",
    "with space.md",
    "ünï.md",
    "100%.md",
    "a#b@c.md",
    "new\nline.md",
    "d/e [f].md",
    '"q"',
]


def test_head_and_branches_and_ids_name_commits(writer: Writer) -> None:
    first = writer.commit({"a.md": "one\n"})
    second = writer.commit({"a.md": "two\n"})
    repository = writer.repository
    assert repository.resolve("HEAD") == repository.resolve("main") == second
    assert repository.resolve(first) == repository.resolve(first[:10]) == first


def test_an_abbreviation_has_seven_characters_and_names_the_commit(writer: Writer) -> None:
    commit = writer.commit({"a.md": "one\n"})
    short = writer.repository.abbreviate(commit)
    assert commit.startswith(short)
    assert len(short) == 7
    assert writer.repository.resolve(short) == commit


@pytest.mark.parametrize("name", NAMES)
def test_any_name_of_a_file_works(writer: Writer, name: str) -> None:
    commit = writer.commit({name: "text\n"})
    (entry,) = writer.repository.entries(commit)
    assert entry.path == name
    assert entry.size == 5
    assert writer.repository.read(commit, name) == b"text\n"


def test_contents_come_in_the_order_asked_for(writer: Writer) -> None:
    files = {f"{n}.bin": bytes([n]) * n * 1_000 for n in range(20)}
    commit = writer.commit(files)
    entries = list(writer.repository.entries(commit))[::-1]
    contents = list(writer.repository.contents([entry.blob for entry in entries]))
    assert contents == [files[entry.path] for entry in entries]


def test_contents_need_not_be_taken_to_the_end(writer: Writer) -> None:
    commit = writer.commit({f"{n}.bin": bytes(100_000) for n in range(20)})
    entries = writer.repository.entries(commit)
    contents = writer.repository.contents([entry.blob for entry in entries])
    assert next(contents) == bytes(100_000)


def test_nothing_asked_for_is_nothing(writer: Writer) -> None:
    assert list(writer.repository.contents([])) == []


def test_bytes_come_as_they_are(writer: Writer) -> None:
    data = bytes(range(256)) + b"\r\n\xef\xbb\xbf\xff"
    commit = writer.commit({"a.bin": data, "empty": b""})
    assert writer.repository.read(commit, "a.bin") == data
    assert writer.repository.read(commit, "empty") == b""


def test_an_older_commit_stays_readable(writer: Writer) -> None:
    first = writer.commit({"a.md": "one\n"})
    writer.commit({"a.md": "two\n"})
    assert writer.repository.read(first, "a.md") == b"one\n"


@pytest.mark.parametrize("path", ["nowhere.md", "d", "", "../a.md", "-a", "*"])
def test_what_is_no_file_is_said_to_be_none(writer: Writer, path: str) -> None:
    commit = writer.commit({"d/a.md": "one\n"})
    with pytest.raises(KnowledgeError, match="no file"):
        writer.repository.read(commit, path)


def test_an_unknown_ref_names_its_setting_and_what_is_close(writer: Writer) -> None:
    writer.commit({"a.md": "one\n"})
    with pytest.raises(KnowledgeError, match=r"knowledge\.ref is 'mian'.*main"):
        writer.repository.resolve("mian")


def test_a_repository_without_a_commit_says_so(writer: Writer) -> None:
    with pytest.raises(KnowledgeError, match="no commit yet"):
        writer.repository.resolve("HEAD")


def test_it_says_what_and_where_it_is(writer: Writer) -> None:
    assert writer.repository.name == "project"
    assert "project" in writer.repository.location
    assert list(writer.repository.warnings) == []
