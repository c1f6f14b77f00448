"""No path leads out of a workspace: a corpus of escapes by names, links, races and patches, of which none succeeds."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from json import dumps, loads
from pathlib import Path

import pytest

from loopline import Harness
from loopline.errors import LooplineError, ToolError
from loopline.files import Folder, Workspace, apply_patch
from loopline.files.folder import has_openat2
from loopline.reader import DocumentError
from loopline.testing import Call
from loopline.testing.scripted import Entry
from loopline.timeline import Timeline, parse_path
from tests.support.rows import each_row
from tests.support.scripted_conversation import talking
from tests.workspace.test_files_of_a_turn import bundle

SECRET = b"the secret\n"
LIMIT = 1_000_000

PATHS = [
    "..",
    ".",
    "",
    "/",
    "//",
    "../secret",
    "../../secret",
    "a/../../secret",
    "a/../b",
    "./secret",
    "a/./b",
    "a//b",
    "a/",
    "files/../secret",
    "files/../../secret",
    "files/",
    "files//secret",
    "outputs/../files/../../secret",
    "outputs/..",
    "/etc/passwd",
    "//etc/passwd",
    "/proc/self/fd/0",
    "/proc/self/root/etc/passwd",
    "files//proc/self/environ",
    "..\\secret",
    "a\\..\\..\\secret",
    "C:\\secret",
    "\\\\host\\share",
    "secret\0.txt",
    "a\0/../../secret",
    "a\n../../secret",
    "a\r",
    "\x1b[2Jsecret",
    "a\x7f",
    "a\x85b",
    "\u202etxt.exe",
    "a\u200b/b",
    "\ufeffsecret",
    "a\u2028b",
    "..\u200d/secret",
    "e\u0301.txt",
    "\ud800.txt",
    "x" * 256,
    "é" * 128,
    "a/" * 40 + "b",
    "/".join(["x" * 250] * 5),
    ".git",
    ".git/hooks/post-checkout",
    "a/.git/config",
    ".GIT/config",
    ".Git /config",
    ".git./config",
    ".git::$INDEX_ALLOCATION/config",
    "git~1/config",
    "attachments/../../secret",
    "attachments/a.txt",
    "fi:turn_1.files/../../secret",
    "fi:turn_1.files/%2e%2e/secret",
    "fi:turn_1.files/a%00b",
    "fi:turn_1.user.attachments/a",
    "turn_1/files/../../../secret",
]
"""Names that no file of a workspace has."""


def test_no_name_leads_out(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(SECRET)
    root = tmp_path / "root"
    root.mkdir()

    @each_row(PATHS)
    def check(path: str) -> None:
        with pytest.raises(LooplineError):
            parse_path(path)
        if not path.startswith(("fi:", "attachments/", "turn_1/")) or ".." in path:
            with Folder(root) as folder, pytest.raises((ToolError, LooplineError)):
                folder.write(path, b"x")
            with Folder(root) as folder, pytest.raises((ToolError, LooplineError)):
                folder.read(path, LIMIT)
        assert list(root.iterdir()) == []
        assert (tmp_path / "secret").read_bytes() == SECRET

    check()


def link_to_a_file(root: Path, outside: Path) -> str:
    (root / "a").symlink_to(outside / "secret")
    return "a"


def link_by_dots(root: Path, outside: Path) -> str:
    (root / "a").symlink_to(Path("..") / outside.name / "secret")
    return "a"


def link_to_a_folder(root: Path, outside: Path) -> str:
    (root / "sub").symlink_to(outside)
    return "sub/secret"


def link_in_a_folder(root: Path, outside: Path) -> str:
    (root / "sub").mkdir()
    (root / "sub/inner").symlink_to(outside)
    return "sub/inner/secret"


def link_to_a_link(root: Path, outside: Path) -> str:
    (root / "b").symlink_to(outside / "secret")
    (root / "a").symlink_to("b")
    return "a"


def link_that_leads_nowhere_yet(root: Path, outside: Path) -> str:
    (root / "a").symlink_to(outside / "new")
    return "a"


def link_to_itself(root: Path, outside: Path) -> str:
    (root / "a").symlink_to("a")
    return "a"


def link_to_an_open_descriptor(root: Path, outside: Path) -> str:
    descriptor = os.open(outside, os.O_RDONLY)  # it is open as long as the process
    (root / "sub").symlink_to(f"/proc/self/fd/{descriptor}")
    return "sub/secret"


def link_to_the_root_of_the_process(root: Path, outside: Path) -> str:
    (root / "sub").symlink_to("/proc/self/root")
    return f"sub{outside}/secret"


def link_to_the_working_folder(root: Path, outside: Path) -> str:
    (root / "sub").symlink_to("/proc/self/cwd")
    return "sub/pyproject.toml"


def hard_link(root: Path, outside: Path) -> str:
    os.link(outside / "secret", root / "a")
    return "a"


def named_pipe(root: Path, outside: Path) -> str:
    os.mkfifo(root / "a")
    return "a"


def unix_socket(root: Path, outside: Path) -> str:
    here = Path.cwd()
    os.chdir(root)  # its path may have no more than a hundred characters
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind("a")
    finally:
        os.chdir(here)
    return "a"


def device(root: Path, outside: Path) -> str:
    (root / "a").symlink_to("/dev/zero")
    return "a"


def folder_as_a_file(root: Path, outside: Path) -> str:
    (root / "a").mkdir()
    return "a"


def file_as_a_folder(root: Path, outside: Path) -> str:
    (root / "sub").write_bytes(b"")
    return "sub/secret"


DISKS: list[Callable[[Path, Path], str]] = [
    link_to_a_file,
    link_by_dots,
    link_to_a_folder,
    link_in_a_folder,
    link_to_a_link,
    link_that_leads_nowhere_yet,
    link_to_itself,
    link_to_an_open_descriptor,
    link_to_the_root_of_the_process,
    link_to_the_working_folder,
    hard_link,
    named_pipe,
    unix_socket,
    device,
    folder_as_a_file,
    file_as_a_folder,
]
WAYS = [pytest.param(False, id="kernel"), pytest.param(True, id="walk")]


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    """A folder, and one outside of it with a secret."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (outside / "secret").write_bytes(SECRET)
    return root, outside


def state_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("walk_only", WAYS)
@pytest.mark.parametrize("lay", DISKS)
def test_nothing_on_the_disk_leads_out(
    lay: Callable[[Path, Path], str], walk_only: bool, places: tuple[Path, Path]
) -> None:
    root, outside = places
    path = lay(root, outside)
    with Folder(root, walk_only=walk_only) as folder:
        with pytest.raises(ToolError):
            assert folder.read(path, LIMIT) is not None
        try:
            folder.write(path, b"written")
        except ToolError:
            pass
        else:
            assert folder.read(path, LIMIT) == b"written"
    assert state_of(outside) == {"secret": SECRET}


SWAP = """
import ctypes, os, sys
exchange = ctypes.CDLL(None, use_errno=True).renameat2
root = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECTORY)
print("ready", flush=True)
while not exchange(root, b"sub", root, b"link", 2):  # RENAME_EXCHANGE: never is there none of the two
    pass
sys.exit(os.strerror(ctypes.get_errno()))
"""
ESCAPES = 30
"""How often a reader that trusts the path must have been led out before the race counts as one."""


@pytest.mark.parametrize("walk_only", WAYS)
def test_a_link_that_is_swapped_in_a_race_leads_nowhere(
    walk_only: bool, places: tuple[Path, Path]
) -> None:
    """Another process exchanges a folder and a link to the secret's, as fast as it can."""
    root, outside = places
    (root / "sub").mkdir()
    (root / "sub/secret").write_bytes(b"inside")
    (root / "link").symlink_to(outside)
    seen, led_out = Counter[bytes | None](), 0
    command = [sys.executable, "-c", SWAP, str(root)]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE) as swapping,
        Folder(root, walk_only=walk_only) as folder,
    ):
        try:
            assert swapping.stdout is not None
            assert swapping.stdout.readline() == b"ready\n"
            for number in range(200_000):
                led_out += (root / "sub/secret").read_bytes() == SECRET
                try:
                    seen[folder.read("sub/secret", LIMIT)] += 1
                    folder.write(f"sub/new-{number % 3}", b"x")
                except ToolError:
                    seen[None] += 1
                if led_out >= ESCAPES and min(seen[None], seen[b"inside"]) >= ESCAPES:
                    break
            assert swapping.poll() is None, "the race was over before the readers were"
        finally:
            swapping.kill()
    assert led_out >= ESCAPES
    assert set(seen) == {None, b"inside"}
    assert state_of(outside) == {"secret": SECRET}


def diff(old: str, new: str, *header: str) -> bytes:
    lines = [*header, f"--- {old}", f"+++ {new}", "@@ -0,0 +1 @@", "+x", ""]
    return "\n".join(lines).encode()


def new_file(name: str, mode: str = "100644") -> bytes:
    header = [f"diff --git a/{name} b/{name}", f"new file mode {mode}"]
    return diff("/dev/null", f"b/{name}", *header)


PATCHES = {
    "dots": new_file("../secret"),
    "dots below": new_file("a/../../secret"),
    "absolute": diff("/dev/null", "/etc/loopline-secret"),
    "absolute in a header": new_file("/etc/loopline-secret"),
    "git": new_file(".git/hooks/post-checkout"),
    "git in capitals": new_file(".GIT/config"),
    "quoted dots": diff(
        "/dev/null",
        '"b/\\056\\056/secret"',
        'diff --git "a/\\056\\056/secret" "b/\\056\\056/secret"',
        "new file mode 100644",
    ),
    "a link": new_file("link", "120000"),
    "a link and a file behind it": new_file("link", "120000") + new_file("link/secret"),
    "a submodule": new_file("module", "160000"),
    "a rename from outside": b"diff --git a/../secret b/mine\nsimilarity index 100%\nrename from ../secret\nrename to mine\n",
    "a rename to outside": b"diff --git a/mine b/../secret\nsimilarity index 100%\nrename from mine\nrename to ../secret\n",
    "a copy from outside": b"diff --git a//etc/passwd b/mine\nsimilarity index 100%\ncopy from /etc/passwd\ncopy to mine\n",
    "a deletion outside": b"diff --git a/../secret b/../secret\ndeleted file mode 100644\n--- a/../secret\n+++ /dev/null\n@@ -1 +0,0 @@\n-the secret\n",
    "attachments": new_file("attachments/a.txt"),
    "an area by another name": new_file("turn_1/files/a.txt"),
    "a control": diff(
        "/dev/null", '"b/a\\033b"', 'diff --git "a/a\\033b" "b/a\\033b"', "new file mode 100644"
    ),
    "no UTF-8": diff(
        "/dev/null", '"b/\\377"', 'diff --git "a/\\377" "b/\\377"', "new file mode 100644"
    ),
}
"""Patches that would write or read outside, or make what no workspace holds."""


@pytest.mark.parametrize("name", PATCHES)
def test_no_patch_leads_out(name: str) -> None:
    files = Workspace(Timeline(), 1)
    files.write("files/mine", "mine\n")
    with pytest.raises(LooplineError):
        apply_patch(PATCHES[name], files.find, LIMIT)
    assert not Path("/etc/loopline-secret").exists()


async def test_no_document_brings_in_a_path_that_leads_out() -> None:
    script: list[Entry] = [Call("react.write", path="files/tea.md", content="x"), "Done."]
    async with talking(script, bundle=bundle()) as talk:
        await talk.say("go")
        document = await talk.export()
    text = (
        dumps(document)
        .replace('"tea.md"', '"../tea.md"')
        .replace("files/tea.md", "files/../tea.md")
    )
    changed = loads(text)
    for block in changed["blocks"]:
        del block["digest"]
    async with Harness.open(bundle(), store="memory:") as harness:
        with pytest.raises(DocumentError, match="is not a path of a workspace"):
            await harness.load(changed, name="other")


def test_the_corpus_is_large() -> None:
    assert len(PATHS) + len(DISKS) + len(PATCHES) >= 60


def test_the_kernel_is_asked_where_it_can() -> None:
    assert isinstance(has_openat2(), bool)
