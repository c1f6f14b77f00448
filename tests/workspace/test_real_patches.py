"""Diffs that Git makes of real sources are applied byte for byte as `git apply` does; broken ones change nothing."""

from __future__ import annotations

import random
import sysconfig
import zlib
from base64 import b85encode
from hashlib import sha1
from pathlib import Path

import pytest

from loopline.errors import ToolError
from loopline.files.patch import explain
from tests.support.rows import each_row
from tests.workspace.real_patches import Tree, broken, git_apply, git_diff, our_apply, refusal

STDLIB = Path(sysconfig.get_paths()["stdlib"])
SOURCES = sorted(
    path
    for folder in ("email", "json", "logging", "wsgiref")
    for path in (STDLIB / folder).glob("*.py")
    if path.stat().st_size > 1_000
)
SEEDS = range(24)
ODD: dict[str, tuple[Tree, Tree]] = {
    "no newline at the end": ({"a": b"one\ntwo"}, {"a": b"one\ntwo\nthree"}),
    "carriage returns": ({"a": b"one\r\ntwo\r\n"}, {"a": b"one\r\n2\r\n"}),
    "white space at line ends": ({"a": b"one  \ntwo\t\n"}, {"a": b"one\ntwo\t \n"}),
    "a name with spaces": ({"a b/c d.txt": b"x\n"}, {"a b/c d.txt": b"y\n"}),
    "a name in Greek": ({"τσάι.txt": b"x\n"}, {"τσάι.txt": b"y\n"}),
    "an empty file is new": ({}, {"empty": b""}),
    "a file becomes empty": ({"a": b"x\n"}, {"a": b""}),
    "a file goes": ({"a": b"x\n", "b": b"y\n"}, {"b": b"y\n"}),
    "bytes": ({"a.bin": bytes(range(256))}, {"a.bin": bytes(range(255, -1, -1))}),
    "bytes are new": ({}, {"a.bin": b"\0\1\2" * 100}),
    "lines that look like headers": (
        {"a": b"-- x\n++ y\n@@ z\n"},
        {"a": b"-- x\n+++ y\n@@ z\n--- w\n"},
    ),
    "a rename": ({"a": b"x\n" * 40}, {"sub/b": b"x\n" * 40}),
    "a rename with a change": ({"a": b"x\n" * 40}, {"sub/b": b"x\n" * 39 + b"y\n"}),
    "no UTF-8": ({"a": b"caf\xe9\nx\n"}, {"a": b"caf\xe9\ny\n"}),
}


def edited(seed: int) -> tuple[Tree, Tree]:
    """Return some modules of the standard library, and the same with lines changed, added, removed and moved."""
    lot = random.Random(seed)
    before = {f"src/{path.name}": path.read_bytes() for path in lot.sample(SOURCES, 3)}
    after = dict[str, bytes]()
    for path, data in before.items():
        lines = data.split(b"\n")
        for _ in range(lot.randrange(1, 8)):
            place = lot.randrange(len(lines))
            match lot.randrange(4):
                case 0:
                    lines[place] = lines[place] + b"  # changed"
                case 1:
                    lines[place:place] = [b"", b"new = %d" % place]
                case 2:
                    del lines[place : place + lot.randrange(1, 5)]
                case _:
                    moved = lines[place : place + 3]
                    del lines[place : place + 3]
                    lines[0:0] = moved
        after[path] = b"\n".join(lines)
    return before, after


@each_row(SEEDS)
def test_a_real_diff_is_applied_as_git_does(seed: int) -> None:
    before, after = edited(seed)
    patch = git_diff(before, after, f"-U{seed % 5}" if seed % 5 else "-U3")
    assert our_apply(before, patch) == git_apply(before, patch) == after


@each_row(ODD)
def test_an_odd_diff_is_applied_as_git_does(name: str) -> None:
    before, after = ODD[name]
    patch = git_diff(before, after, "-M")
    assert our_apply(before, patch) == git_apply(before, patch) == after


@each_row(range(12))
def test_a_broken_diff_is_refused_with_its_place_and_changes_nothing(seed: int) -> None:
    before, after = edited(seed)
    original = dict(before)
    broken_ones = list(broken(git_diff(before, after), random.Random(seed)))
    assert broken_ones
    for breakage in broken_ones:
        assert git_apply(before, breakage.patch) is None
        said = refusal(before, breakage.patch)
        assert said is not None, breakage.how
        assert said.is_placed, said.text
    assert before == original


@pytest.mark.parametrize(
    "header", ["@@ -1 +1 @@", "@@ -99,3 +99,3 @@", "@@ -1,9 +1,9 @@", "@@ -2,1 +2,7 @@ def tea():"]
)
def test_numbers_of_a_hunk_may_be_wrong(header: str) -> None:
    before = {"a.py": b"one\ntwo\nthree\nfour\n"}
    patch = f"--- a/a.py\n+++ b/a.py\n{header}\n one\n-two\n+2\n three\n".encode()
    assert our_apply(before, patch) == {"a.py": b"one\n2\nthree\nfour\n"}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"one\r\ntwo\r\nthree\r\n", b"one\r\n2\r\n\r\nthree\r\n"),
        (b"one\r\ntwo\r\nthree", b"one\r\n2\r\n\r\nthree"),
        (b"one\ntwo\nthree\n", b"one\n2\n\nthree\n"),
    ],
)
def test_a_file_keeps_the_ends_of_its_lines(before: bytes, after: bytes) -> None:
    end = b"" if before.endswith(b"\n") else b"\n\\ No newline at end of file"
    patch = b"--- a/a.txt\n+++ b/a.txt\n@@ -1,3 +1,4 @@\n one\n-two\n+2\n+\n three" + end + b"\n"
    tree = {"a.txt": before, "b.txt": b"x\r\n"}
    assert our_apply(tree, patch) == {**tree, "a.txt": after}


def test_a_file_with_both_ends_of_lines_is_not_guessed_at() -> None:
    patch = b"--- a/a.txt\n+++ b/a.txt\n@@ -1,2 +1,2 @@\n-one\n+1\n two\n"
    assert refusal({"a.txt": b"one\r\ntwo\nthree\r\n"}, patch) is not None


def test_a_hunk_that_begins_before_the_file_names_no_line_of_it() -> None:
    patch = b"--- a/a.txt\n+++ b/a.txt\n@@ -1,3 +1,3 @@\n zero\n one\n-two\n+2\n"
    said = refusal({"a.txt": b"one\ntwo\nthree\n"}, patch)
    assert said is not None
    assert "line 0" not in said.text
    assert "it expects: 'zero'\nthe file begins with a later line of the hunk" in said.text


@each_row(
    [
        (b"just words", "this is not a unified diff"),
        (b"@@ -1 +1 @@\n-a\n+b\n", "names no file"),
        (b"--- a/here.py\n+++ b/here.py\n@@ nonsense\n-a\n+b\n", "Git cannot read the patch"),
        (b"--- a/gone.py\n+++ b/gone.py\n@@ -1 +1 @@\n-a\n+b\n", "files/gone.py does not exist"),
        (b"--- /dev/null\n+++ b/here.py\n@@ -0,0 +1 @@\n+b\n", "exists already"),
        (b"x" * 4_000_001, "may have 4,000,000"),
    ]
)
def test_what_is_no_patch_is_said_so(patch: bytes, problem: str) -> None:
    with pytest.raises(ToolError, match=problem):
        our_apply({"here.py": b"a\n"}, patch)


def test_a_small_patch_does_not_copy_more_than_a_workspace_may_have() -> None:
    entry = "diff --git a/big b/copy{0}\nsimilarity index 100%\ncopy from big\ncopy to copy{0}\n"
    patch = "".join(map(entry.format, range(100))).encode()
    with pytest.raises(ToolError, match="makes files of 100,000,000 bytes or more"):
        our_apply({"big": b"x\n" * 500_000}, patch)


def test_a_patch_that_unpacks_to_gigabytes_is_refused_by_a_limit_of_memory() -> None:
    base = b"\0" * 2**20
    copies = b"\xc0\x10" * 2_048  # each copies 2**20 bytes
    delta = b"\x80\x80\x40" + b"\x80\x80\x80\x80\x08" + copies
    packed = zlib.compress(delta)
    assert len(packed) <= 52
    name = sha1(b"blob %d\0" % len(base) + base).hexdigest().encode()
    size = chr(len(packed) + (64 if len(packed) < 27 else 70)).encode()
    patch = b"diff --git a/big b/big\nindex %s..%s 100644\n" % (name, b"1" * 40)
    patch += b"GIT binary patch\ndelta %d\n%s\n\n" % (
        len(delta),
        size + b85encode(packed, pad=True),
    )
    with pytest.raises(ToolError, match="Out of memory"):
        our_apply({"big": base}, patch)


def test_a_number_of_any_length_in_a_patch_is_refused() -> None:
    patch = f"--- a/a.txt\n+++ b/a.txt\n@@ -{'1' * 5_000} +1 @@\n-b\n+c\n".encode()
    with pytest.raises(ToolError, match="nothing was changed"):
        our_apply({"a.txt": b"a\n"}, patch)


def test_a_patch_of_equal_lines_is_explained_without_a_comparison_at_each_line() -> None:
    lines = 200_000  # such comparisons are 40,000,000,000, so that this test would not end
    hunk = f"@@ -1,{lines + 1} +1,{lines + 1} @@\n" + " a\n" * lines + "-b\n+c\n"
    patch = f"--- a/a.txt\n+++ b/a.txt\n{hunk}".encode()
    text = explain(patch, 1, {"files/a.txt": b"a\n" * 2 * lines}, "it does not apply")
    assert text.count("Hunk 1 of 1 for files/a.txt does not fit") == 1


def test_only_the_first_mismatches_of_a_patch_are_explained() -> None:
    hunks = "".join(f"@@ -{number} +{number} @@\n-none\n+c\n" for number in range(1, 6))
    said = refusal({"a.txt": b"a\n" * 9}, f"--- a/a.txt\n+++ b/a.txt\n{hunks}".encode())
    assert said is not None
    assert "Hunk 3 of 5" in said.text
    assert "Hunk 4 of 5" not in said.text
    assert said.text.endswith("\n(there are more)")
