"""Git repositories of every shape, and what is said when one cannot be had."""

from __future__ import annotations

import os
import random
import shutil
import stat
from base64 import b64encode
from contextlib import suppress
from pathlib import Path

import pytest

from loopline.errors import KnowledgeError, RefError
from loopline.knowledge import KnowledgeSpace
from loopline.knowledge.fts import FtsIndexes
from loopline.knowledge.git import GitRepository
from tests.support.hostile_repositories import snapshot
from tests.support.local_http import Answering, http_server

from .conftest import GitFolder


def test_nothing_is_written_to_the_repository(folder: GitFolder) -> None:
    commit = folder.commit({"docs/a.md": "one\n"})
    os.utime(folder.path / "docs/a.md", (1, 1))  # git status would like to refresh its index
    before = snapshot(folder.path)
    repository = GitRepository.open(str(folder.path))
    assert repository.resolve("HEAD") == commit
    entries = repository.entries(commit)
    assert list(repository.contents([entry.blob for entry in entries])) == [b"one\n"]
    assert repository.count_uncommitted() == 0
    assert snapshot(folder.path) == before


def test_what_is_not_committed_is_counted_and_not_read(folder: GitFolder) -> None:
    commit = folder.commit({"a.md": "one\n", "b.md": "b\n", ".gitignore": "ignored\n"})
    folder.write({"a.md": "two\n", "new/c.md": "c\n", "new/d.md": "d\n", "ignored": "x\n"})
    (folder.path / "b.md").unlink()
    repository = GitRepository.open(str(folder.path))
    assert repository.count_uncommitted() == 4
    assert repository.read(commit, "a.md") == b"one\n"


def test_links_and_submodules_are_left_out(folder: GitFolder, tmp_path: Path) -> None:
    inner = GitFolder(tmp_path / "inner")
    inner.commit({"x.md": "x\n"})
    (folder.path / "link.md").symlink_to("a.md")
    folder.git("-c", "protocol.file.allow=always", "submodule", "add", "-q", str(inner.path), "sub")
    commit = folder.commit({"a.md": "one\n"})
    repository = GitRepository.open(str(folder.path))
    assert {entry.path for entry in repository.entries(commit)} == {".gitmodules", "a.md"}
    for path in ("link.md", "sub"):
        with pytest.raises(KnowledgeError, match="no file"):
            repository.read(commit, path)


def test_a_commit_listed_after_another_has_the_files_of_one_listed_first(folder: GitFolder) -> None:
    first = folder.commit({f"docs/{name}.md": f"{name}\n" for name in "abcde"} | {"kept.md": "k\n"})
    folder.git("rm", "-q", "docs/a.md")
    folder.git("mv", "docs/b.md", "0.md")
    (folder.path / "docs/c.md").chmod(0o755)
    (folder.path / "docs/d.md").unlink()
    (folder.path / "docs/d.md").symlink_to("e.md")
    second = folder.commit({"docs/e.md": "longer\n", "docs/new/f.md": "f\n", "näme\t.md": "n\n"})
    (folder.path / "docs/d.md").unlink()
    third = folder.commit({"docs/d.md": "a file again\n"})
    repository = GitRepository.open(str(folder.path))
    for commit in (first, second, third, first, first, third):
        alone = GitRepository.open(str(folder.path))
        assert repository.entries(commit) == alone.entries(commit)


def test_a_worktree_is_a_repository(folder: GitFolder, tmp_path: Path) -> None:
    commit = folder.commit({"a.md": "one\n"})
    folder.git("worktree", "add", "-q", "-b", "other", str(tmp_path / "other"))
    assert (tmp_path / "other" / ".git").is_file()
    repository = GitRepository.open(str(tmp_path / "other"))
    assert repository.name == "other"
    assert repository.resolve("HEAD") == commit
    assert repository.count_uncommitted() == 0


def test_a_folder_inside_a_work_tree_is_its_repository(folder: GitFolder) -> None:
    folder.commit({"docs/a.md": "one\n"})
    repository = GitRepository.open(str(folder.path / "docs"))
    assert repository.location == str(folder.path)


def test_a_path_may_be_relative_or_at_home(
    folder: GitFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.commit({"a.md": "one\n"})
    monkeypatch.chdir(folder.path.parent)
    monkeypatch.setenv("HOME", str(folder.path.parent))
    assert GitRepository.open("project").location == str(folder.path)
    assert GitRepository.open("./project/").location == str(folder.path)
    assert GitRepository.open("~/project").location == str(folder.path)


def test_nothing_is_the_work_tree_that_holds_the_bundle(
    folder: GitFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.commit({"bundles/guide/bundle.py": "x\n"})
    elsewhere = GitFolder(tmp_path / "elsewhere")
    monkeypatch.chdir(elsewhere.path)
    opened = GitRepository.open("", bundle_folder=folder.path / "bundles/guide")
    assert opened.location == str(folder.path)


def test_nothing_is_else_the_current_folders_repository(
    folder: GitFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bundle").mkdir()
    monkeypatch.chdir(folder.path)
    assert GitRepository.open("", bundle_folder=tmp_path / "bundle").location == str(folder.path)


def test_without_any_repository_both_folders_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bundle").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(KnowledgeError, match=r"knowledge\.repo is empty.*bundle.*here"):
        GitRepository.open("", bundle_folder=tmp_path / "bundle")


def test_the_environment_of_a_git_hook_changes_nothing(
    folder: GitFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = folder.commit({"a.md": "one\n"})
    hooked = GitFolder(tmp_path / "hooked")
    monkeypatch.setenv("GIT_DIR", str(hooked.path / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "index"))
    repository = GitRepository.open(str(folder.path))
    assert repository.resolve("HEAD") == commit
    assert repository.count_uncommitted() == 0


@pytest.mark.parametrize(
    ("repo", "message"),
    [
        ("nowhere", r"knowledge\.repo is 'nowhere', but .* does not exist"),
        ("file", r"knowledge\.repo is 'file', but .* is a file"),
        ("plain", r"knowledge\.repo is .*plain, which is not a git repository"),
        ("~nobody-of-that-name/x", r"knowledge\.repo is '~nobody"),
        ("ext::sh -c true", r"knowledge\.repo is 'ext::sh"),
    ],
)
def test_a_folder_that_is_no_repository_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repo: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain").mkdir()
    (tmp_path / "file").write_text("x")
    with pytest.raises(KnowledgeError, match=message):
        GitRepository.open(repo)


def test_a_repository_of_another_user_says_what_to_allow(
    folder: GitFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    folder.commit({"a.md": "one\n"})
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    with pytest.raises(KnowledgeError, match=r"safe\.directory .*project"):
        GitRepository.open(str(folder.path))


@pytest.mark.parametrize("ref", ["--help", "-n1", "", "a\nb", "HEAD\0", "--output=x"])
def test_what_cannot_be_a_ref_never_reaches_git(folder: GitFolder, ref: str) -> None:
    folder.commit({"a.md": "one\n"})
    with pytest.raises(KnowledgeError, match=r"knowledge\.ref is .* cannot be"):
        GitRepository.open(str(folder.path)).resolve(ref)


def test_tags_and_relative_names_are_refs(folder: GitFolder) -> None:
    first = folder.commit({"a.md": "one\n"})
    folder.git("tag", "--annotate", "v1", "--message=one")
    folder.commit({"a.md": "two\n"})
    repository = GitRepository.open(str(folder.path))
    assert repository.resolve("v1") == first
    assert repository.resolve("HEAD~1") == first


def test_what_is_no_commit_is_no_ref(folder: GitFolder) -> None:
    folder.commit({"a.md": "one\n"})
    with pytest.raises(KnowledgeError, match=r"knowledge\.ref"):
        GitRepository.open(str(folder.path)).resolve("HEAD:a.md")


def test_a_name_that_is_not_utf8_is_kept_apart(folder: GitFolder) -> None:
    (folder.path / os.fsdecode(b"caf\xe9.md")).write_bytes(b"x\n")
    commit = folder.commit({"a.md": "one\n"})
    repository = GitRepository.open(str(folder.path))
    paths = [entry.path for entry in repository.entries(commit)]
    assert paths == ["a.md", "caf\udce9.md"]
    assert repository.read(commit, "caf\udce9.md") == b"x\n"


def test_a_lost_object_is_said_to_be_lost(folder: GitFolder) -> None:
    commit = folder.commit({"a.md": "one\n"})
    repository = GitRepository.open(str(folder.path))
    (entry,) = repository.entries(commit)
    lost = folder.path / ".git/objects" / entry.blob[:2] / entry.blob[2:]
    lost.chmod(stat.S_IWUSR | stat.S_IRUSR)
    lost.unlink()
    with pytest.raises(KnowledgeError, match=f"lacks the object {entry.blob}"):
        list(repository.contents([entry.blob]))


def test_an_object_that_is_cut_short_is_an_error_and_not_the_content_of_a_file(
    folder: GitFolder,
) -> None:
    commit = folder.commit({"a.md": random.Random(1).randbytes(200_000).hex()})
    repository = GitRepository.open(str(folder.path))
    (entry,) = repository.entries(commit)
    cut = folder.path / ".git/objects" / entry.blob[:2] / entry.blob[2:]
    cut.chmod(stat.S_IWUSR | stat.S_IRUSR)
    os.truncate(cut, 100_000)
    with pytest.raises(KnowledgeError, match=f"git ended while it read the object {entry.blob}"):
        list(repository.contents([entry.blob]))


def test_a_repository_that_goes_away_is_said_to_be_gone(folder: GitFolder) -> None:
    folder.commit({"a.md": "one\n"})
    repository = GitRepository.open(str(folder.path))
    shutil.rmtree(folder.path)
    with pytest.raises(KnowledgeError, match=r"knowledge\.repo: .* is gone"):
        repository.resolve("HEAD")


def url_of(folder: GitFolder) -> str:
    return f"file://{folder.path}"


def test_a_remote_is_mirrored_and_fetched_each_time_it_is_opened(
    folder: GitFolder, tmp_path: Path
) -> None:
    first = folder.commit({"a.md": "one\n"})
    opened = GitRepository.open(url_of(folder), mirrors=tmp_path / "mirrors")
    assert opened.resolve("HEAD") == first
    assert opened.name == "project"
    assert opened.location == url_of(folder)
    assert opened.count_uncommitted() == 0
    made = [tmp_path / "mirrors", *(tmp_path / "mirrors").iterdir()]
    assert [path for path in made if path.stat().st_mode & 0o077] == []
    folder.git("checkout", "-q", "-b", "next")
    second = folder.commit({"a.md": "two\n"})
    assert opened.resolve("HEAD") == first
    again = GitRepository.open(url_of(folder), mirrors=tmp_path / "mirrors")
    assert again.resolve("HEAD") == again.resolve("next") == second
    assert again.read(second, "a.md") == b"two\n"
    assert list(again.warnings) == []


def test_a_remote_that_is_gone_is_read_from_its_mirror_with_a_warning(
    folder: GitFolder, tmp_path: Path
) -> None:
    commit = folder.commit({"a.md": "one\n"})
    GitRepository.open(url_of(folder), mirrors=tmp_path / "mirrors")
    folder.path.rename(tmp_path / "moved")
    opened = GitRepository.open(url_of(folder), mirrors=tmp_path / "mirrors")
    assert opened.resolve("HEAD") == commit
    assert "older copy" in opened.warnings[0]
    assert url_of(folder) in opened.warnings[0]


def test_a_remote_that_is_gone_and_whose_mirror_lacks_the_ref_is_an_error(
    folder: GitFolder, tmp_path: Path
) -> None:
    folder.commit({"a.md": "one\n"})
    GitRepository.open(url_of(folder), mirrors=tmp_path / "mirrors")
    folder.path.rename(tmp_path / "moved")
    with pytest.raises(KnowledgeError, match="git said"):
        GitRepository.open(url_of(folder), ref="v9", mirrors=tmp_path / "mirrors")


@pytest.mark.parametrize(
    "url",
    [
        "https://user:secret@localhost:1/x.git",
        "ssh://git@localhost:1/x.git",
        "file:///nowhere/at/all.git",
        "git@host.invalid:x.git",
    ],
)
def test_a_remote_that_cannot_be_reached_is_named_without_its_password(
    tmp_path: Path, url: str
) -> None:
    with pytest.raises(KnowledgeError) as raised:
        GitRepository.open(url, mirrors=tmp_path)
    message = str(raised.value)
    assert message.startswith("knowledge.repo is ")
    assert url.replace("user:secret@", "") in message
    assert "git said: nothing" not in message
    assert "secret" not in message


@pytest.mark.parametrize(
    "url",
    [
        "https://user:a@secret@localhost:1/x.git",
        "HTTPS://secret@localhost:1/x.git",
        "https://localhost:1/x.git?private_token=secret",
        "ssh://git:secret@localhost:1/x.git",
        "ftp://user:secret@localhost:1/x.git",
    ],
)
def test_a_token_in_a_url_is_in_no_error(tmp_path: Path, url: str) -> None:
    with pytest.raises(KnowledgeError) as raised:
        GitRepository.open(url, mirrors=tmp_path)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("login", "decoded"),
    [("ann%40home:se%2Fcr%25et", "ann@home:se/cr%et"), ("to%2Fkcr%25et", "to/kcr%et:")],
)
def test_the_login_of_a_url_is_on_no_command_line_and_not_sent_after_a_redirect(
    folder: GitFolder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    login: str,
    decoded: str,
) -> None:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    commit = folder.commit({"a.md": "one\n"})
    folder.git("update-server-info")
    headers, redirected, commands = list[str](), list[str | None](), list[bytes]()
    basic = f"Basic {b64encode(decoded.encode()).decode()}"

    class Elsewhere(Answering):
        def get(self) -> None:
            redirected.append(self.headers["Authorization"])
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="elsewhere"')
            self.end_headers()

    class Site(Answering):
        def get(self) -> None:
            for process in Path("/proc").glob("[0-9]*"):
                with suppress(OSError):  # it has ended
                    commands.append((process / "cmdline").read_bytes())
            header = self.headers["Authorization"] or ""
            headers.append(header)
            path = folder.path / ".git" / self.path.partition("?")[0].removeprefix("/x.git/")
            if self.path.startswith("/moved.git/"):
                self.send_response(302)
                self.send_header("Location", elsewhere + self.path)
                self.end_headers()
            elif header != basic:
                self.send_response(401)
                self.send_header("WWW-Authenticate", 'Basic realm="here"')
                self.end_headers()
            elif path.is_file():
                self.answer(path.read_bytes())
            else:
                self.send_error(404)

    with http_server(Elsewhere) as elsewhere, http_server(Site) as site:
        url = site.replace("//", f"//{login}@")
        opened = GitRepository.open(f"{url}/x.git", mirrors=tmp_path / "mirrors")
        assert opened.resolve("HEAD") == commit
        with pytest.raises(KnowledgeError, match=r"git said: .*Authentication failed"):
            GitRepository.open(f"{url}/moved.git", mirrors=tmp_path / "mirrors")
    assert {"", basic} == {*headers}
    assert redirected
    assert basic not in redirected
    assert b"/x.git" in b"".join(commands)
    assert [line for line in commands if b"cr%25et" in line or b"cr%et" in line] == []
    stored = [path for path in (tmp_path / "mirrors").rglob("*") if path.is_file()]
    assert [path for path in stored if b"cr%" in path.read_bytes()] == []


def test_a_refused_login_is_an_error_although_there_is_an_older_copy(
    folder: GitFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    folder.commit({"a.md": "one\n"})
    folder.git("update-server-info")
    refusals = {f"Basic {b64encode(b'bob:banned').decode()}": 403}
    allowed = f"Basic {b64encode(b'bob:right').decode()}"

    class Site(Answering):
        def get(self) -> None:
            header = self.headers["Authorization"] or ""
            path = folder.path / ".git" / self.path.partition("?")[0].removeprefix("/x.git/")
            if header != allowed:
                self.send_response(refusals.get(header, 401))
                self.send_header("WWW-Authenticate", 'Basic realm="here"')
                self.end_headers()
            elif path.is_file():
                self.answer(path.read_bytes())
            else:
                self.send_error(404)

    with http_server(Site) as site:
        for login in ("bob:right@", "bob:wrong@", "bob:banned@", "bob@", ""):
            url = f"{site.replace('//', f'//{login}')}/x.git"
            if login == "bob:right@":
                GitRepository.open(url, mirrors=tmp_path / "mirrors")
                continue
            with pytest.raises(KnowledgeError, match="its server refused the login; git said: "):
                GitRepository.open(url, mirrors=tmp_path / "mirrors")
    opened = GitRepository.open(f"{site}/x.git", mirrors=tmp_path / "mirrors")
    assert "an older copy is used" in opened.warnings[0]


def test_the_name_of_a_mirror_contains_no_password(tmp_path: Path) -> None:
    for url in ("http://ann:secret@localhost:1", "http://localhost:1/x?token=secret"):
        with pytest.raises(KnowledgeError):
            GitRepository.open(url, mirrors=tmp_path)
    assert [path.name for path in tmp_path.iterdir() if "secret" in path.name] == []


@pytest.mark.parametrize(
    "repo", ["a\0b", "https://x/\0", "a\udcff", "a\nb", "https://ann:secret%00@x/"]
)
def test_what_is_no_name_of_a_repository_is_said_to_be_none(tmp_path: Path, repo: str) -> None:
    with pytest.raises(KnowledgeError, match=r"knowledge\.repo is"):
        GitRepository.open(repo, mirrors=tmp_path)


def test_a_remote_without_a_commit_says_so(folder: GitFolder, tmp_path: Path) -> None:
    opened = GitRepository.open(url_of(folder), mirrors=tmp_path / "mirrors")
    with pytest.raises(KnowledgeError, match="no commit yet"):
        opened.resolve("HEAD")


def test_a_remote_that_never_answers_is_given_up(tmp_path: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(KnowledgeError, match="did not complete in 1 secs"):
            GitRepository.open(
                f"http://127.0.0.1:{port}/x.git", mirrors=tmp_path, timeout_seconds=1.0
            )


async def test_a_ref_to_what_a_space_leaves_out_says_what_it_is(
    folder: GitFolder, tmp_path: Path
) -> None:
    inner = GitFolder(tmp_path / "inner")
    inner.commit({"x.md": "# X\n"})
    folder.write({"a.md": "# A\n", "logo.png": b"\x89PNG\0\0", "big.txt": b"x\n" * 25_000_000})
    (folder.path / "link.md").symlink_to("a.md")
    folder.git("-c", "protocol.file.allow=always", "submodule", "add", "-q", str(inner.path), "sub")
    folder.commit({})
    space = KnowledgeSpace(GitRepository.open(str(folder.path)), FtsIndexes())
    await space.ensure()
    said: dict[str, str] = {}
    for path in ("link.md", "sub/x.md", "logo.png", "big.txt"):
        with pytest.raises(RefError) as caught:
            await space.read(f"ks:{path}")
        said[path] = str(caught.value)
    short = space.state.short_commit
    assert said == {
        "link.md": f"link.md is a link at {short}, and a knowledge space has none",
        "sub/x.md": f"sub is a submodule at {short}, and a knowledge space has none",
        "logo.png": "ks:logo.png is not text: it has 6 bytes",
        "big.txt": "ks:big.txt has 50,000,000 bytes, and at most 32,000,000 of a file are read",
    }
    await space.close()
