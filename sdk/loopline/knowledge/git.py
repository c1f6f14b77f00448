"""Git repositories, local and remote, read at a commit. Nothing is ever written to a user's repository."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from hashlib import sha256
from pathlib import Path
from typing import IO, BinaryIO

from git import Git

from loopline.errors import KnowledgeError
from loopline.knowledge.repository import LeftOut, RepositoryFile
from loopline.search.file_lock import locked_file

_REMOTE = re.compile(r"(?:https?|ssh|git|file)://|\w[\w.-]*@[\w.-]+:(?!//)", re.IGNORECASE)
# In an HTTP URL the user name may be the token; in others it is `git`.
_USER = re.compile(r"(https?://)[^/\s]*@", re.IGNORECASE)
_PASSWORD = re.compile(r"(://[^\s/:@]*):[^\s/]*@")
_QUERY = re.compile(r"(?<=://)([^\s?#]*)[?#][^\s'\"]*")
_UNSAFE_CHARACTER = re.compile(r"[^\w.-]")
_LINK_MODE = "120000"
_FILE_MODES = frozenset({"100644", "100755", "100664"})
_OBJECT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_FILTER_SETTING = re.compile(r"(filter\..*\.)(?:clean|smudge|process|required)", re.DOTALL)
_EMPTY, _FALSE = "NO_PROGRAM", "NOT_REQUIRED"
_NO_FILTER = {"clean": _EMPTY, "smudge": _EMPTY, "process": _EMPTY, "required": _FALSE}
_OWN_ENVIRONMENT = (
    "env", "-u", "GIT_DIR", "-u", "GIT_WORK_TREE", "-u", "GIT_INDEX_FILE", "-u", "GIT_PREFIX",
    "-u", "GIT_OBJECT_DIRECTORY", "-u", "GIT_COMMON_DIR", "-u", "GIT_NAMESPACE",
)  # fmt: skip
GIT_NOT_FOUND = 127
# Nobody can answer a prompt, so neither git nor ssh nor a credential helper may wait for one.
_NO_PROMPT = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "true",
    "SSH_ASKPASS": "true",
    "SSH_ASKPASS_REQUIRE": "force",
    "GCM_INTERACTIVE": "never",
}
# Reading takes no locks, writes nothing and fetches nothing. Older versions of git don't know
# GIT_NO_LAZY_FETCH, so no transport is allowed either.
_READ_ONLY = {
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ALLOW_PROTOCOL": "none",
    _EMPTY: "",
    _FALSE: "false",
    **_NO_PROMPT,
}
_FETCHING = {"GIT_OPTIONAL_LOCKS": "0", **_NO_PROMPT}
# The programs that a repository's configuration could make git run. Filters have names of their own.
_NO_PROGRAMS = (
    "-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}",
    "-c", "core.alternateRefsCommand=", "-c", "core.sshCommand=false", "-c", "core.pager=cat",
    "-c", "credential.helper=", "-c", "diff.external=", "-c", "gpg.program=false",
    "-c", "log.showSignature=false", "-c", "submodule.recurse=false", "-c", "gc.auto=0",
)  # fmt: skip
_REMOTE_HEAD = "refs/loopline/head"
_REFSPECS = ("+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")
FETCH_SECONDS = 300.0
REF_LIMIT = 5_000


class GitRepository:
    """A repository that git can read. Made by `GitRepository.open`."""

    def __init__(
        self,
        folder: Path,
        *,
        name: str,
        location: str,
        bare: bool,
        head: str = "HEAD",
        warnings: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.location = location
        self.warnings: tuple[str, ...] = tuple(warnings)
        self._folder = folder
        self._bare = bare
        self._head = head
        self._short: dict[str, str] = {}
        self._listed: tuple[str, dict[str, RepositoryFile]] | None = None
        """The commit whose files were listed last, and its files by their paths."""

    @classmethod
    def open(
        cls,
        repo: str = "",
        *,
        ref: str = "HEAD",
        bundle_folder: Path | None = None,
        mirrors: Path | None = None,
        timeout_seconds: float = FETCH_SECONDS,
        fetch: bool = True,
    ) -> GitRepository:
        """Open the repository of a `knowledge.repo` setting; blocks, and for a URL uses the network.

        An empty setting means the work tree that holds the bundle's folder, else the current folder.
        A URL is mirrored below `mirrors` and fetched; when it cannot be reached, an older mirror that
        has `ref` is used, with a warning. Without `fetch` a mirror that is there is used as it is.

        Raises:
            KnowledgeError: there is no such repository, or it cannot be read.
        """
        setting = repo.strip()
        if not setting.isprintable():
            raise KnowledgeError(
                f"knowledge.repo is {_without_password(setting)!r}: no such name exists"
            )
        if _REMOTE.match(setting):
            return _mirror(setting, ref, mirrors, timeout_seconds, fetch=fetch)
        if "://" in setting:
            raise KnowledgeError(
                f"knowledge.repo is {_without_password(setting)!r}: a URL begins with "
                "https://, http://, ssh://, git:// or file://"
            )
        if setting:
            return _local_repository(setting)
        return _surrounding_repository(bundle_folder)

    def resolve(self, ref: str) -> str:
        """Return the full id of the commit that a ref names now."""
        if not ref or ref.startswith("-") or not ref.isprintable():
            raise KnowledgeError(f"knowledge.ref is {ref!r}, which cannot be the name of a commit")
        name = self._head if ref == "HEAD" else ref
        status, out, error = _git(
            self._folder, *_NO_PROGRAMS,
            "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}",
        )  # fmt: skip
        commit = out.decode().strip()
        if status == 0 and commit:
            return commit
        raise self._unknown(ref, error)

    def abbreviate(self, commit: str) -> str:
        """Return the first seven characters of a full id, or as many more as git needs."""
        if commit not in self._short:
            out = self._git_output("rev-parse", "--short=7", "--verify", self._object(commit))
            self._short[commit] = out.decode().strip()
        return self._short[commit]

    def entries(self, commit: str) -> Sequence[RepositoryFile]:
        """Return every file; a path that is not UTF-8 has surrogate escapes.

        After a first commit only what differs from the one before is asked for.
        """
        files = self._listed_since(commit)
        if files is None:
            files = {
                path: RepositoryFile(path, int(size), blob)
                for mode, kind, blob, size, path in self._tree(commit)
                if kind == "blob" and mode != _LINK_MODE
            }
        self._listed = (commit, files)
        return [*files.values()]

    def _listed_since(self, commit: str) -> dict[str, RepositoryFile] | None:
        """Return the files of a commit, made of those of the commit listed before; None if there is none to compare."""
        if self._listed is None:
            return None
        before, listed = self._listed
        status, out, _ = _git(
            self._folder, *_NO_PROGRAMS, "diff-tree", "-r", "-z", "--raw", "--no-renames", "--no-abbrev",
            self._object(before), self._object(commit),
        )  # fmt: skip
        if status != 0:  # the commit before is gone
            return None
        changed: dict[str, str] = {}
        gone: list[str] = []
        fields = out.decode("utf-8", "surrogateescape").split("\0")
        for head, path in zip(fields[::2], fields[1::2], strict=False):
            _, mode, _, blob, _ = head.split()
            if mode in _FILE_MODES:
                changed[path] = blob
            else:
                gone.append(path)
        sizes = self._sizes([*changed.values()])
        if sizes is None:
            return None
        files = listed | {
            path: RepositoryFile(path, size, blob)
            for (path, blob), size in zip(changed.items(), sizes, strict=True)
        }
        for path in gone:
            files.pop(path, None)
        return dict(sorted(files.items())) if gone or len(files) > len(listed) else files

    def _sizes(self, blobs: Sequence[str]) -> list[int] | None:
        """Return the size of each blob; None if one is lost."""
        if not blobs:
            return []
        with self._names_of(blobs) as names:
            out: bytes = Git(str(self._folder)).execute(
                _command(*_NO_PROGRAMS, "cat-file", "--batch-check=%(objectsize)"),
                istream=names.fileno(),
                stdout_as_string=False,
                env=_READ_ONLY,
            )
        sizes = out.decode().splitlines()
        return [*map(int, sizes)] if all(map(str.isdecimal, sizes)) else None

    @contextmanager
    def _names_of(self, blobs: Sequence[str]) -> Generator[IO[bytes]]:
        """Open a file of the ids, one on a line, for a command to read."""
        with tempfile.TemporaryFile() as names:
            names.write("".join(f"{self._object(blob)}\n" for blob in blobs).encode())
            names.seek(0)
            yield names

    def left_out(self, commit: str) -> Mapping[str, LeftOut]:
        """Return the links and submodules by their paths."""
        return {
            path: "link" if mode == _LINK_MODE else "submodule"
            for mode, kind, _, _, path in self._tree(commit)
            if kind != "blob" or mode == _LINK_MODE
        }

    def _tree(self, commit: str) -> Iterator[tuple[str, str, str, str, str]]:
        """Yield mode, type, id, size and path of everything in a commit but folders."""
        out = self._git_output("ls-tree", "-r", "-z", "-l", "--full-tree", self._object(commit))
        for line in out.decode("utf-8", "surrogateescape").split("\0"):
            head, _, path = line.partition("\t")
            if path:
                mode, kind, blob, size = head.split()
                yield mode, kind, blob, size, path

    def contents(self, blobs: Sequence[str]) -> Iterator[bytes]:
        """Yield the bytes of many blobs from one `git cat-file`."""
        if not blobs:
            return
        with self._names_of(blobs) as names:
            process = Git(str(self._folder)).execute(
                _command(*_NO_PROGRAMS, "cat-file", "--batch", "--buffer"),
                istream=names.fileno(),
                as_process=True,
                env=_READ_ONLY,
            )
            try:
                stream: BinaryIO = process.stdout
                for blob in blobs:
                    yield self._next_blob(stream, blob)
            finally:
                del process  # its finalizer closes the pipes, ends git and waits for it

    def read(self, commit: str, path: str) -> bytes:
        """Return the bytes of one file."""
        for mode, blob in self._at(commit, path):
            if mode.startswith("100"):
                return self._git_output("cat-file", "blob", blob)
        raise KnowledgeError(f"{self.name} has no file {path!r} at {self.abbreviate(commit)}")

    def uncommitted(self) -> int:
        """Count the files of the work tree that differ from HEAD or are new and not ignored.

        No filter of the repository runs, for it is a program of its author: a touched file that has one
        counts as changed. Submodules are not counted.
        """
        if self._bare:
            return 0
        out = self._git_output(
            *self._no_filters(),
            "status", "--porcelain", "-z", "--no-renames", "--untracked-files=all",
            "--ignore-submodules=all",
        )  # fmt: skip
        return out.count(b"\0")

    def _no_filters(self) -> list[str]:
        """Return the options that leave every configured filter without a program."""
        out = self._git_output("config", "--list", "--name-only", "-z").decode(
            "utf-8", "surrogateescape"
        )
        named = {match[1] for name in out.split("\0") if (match := _FILTER_SETTING.fullmatch(name))}
        # Not by -c, which would end the name of a filter at a `=` in it.
        return [
            f"--config-env={name}{setting}={value}"
            for name in sorted(named)
            for setting, value in _NO_FILTER.items()
        ]

    def _object(self, id: str) -> str:
        """Return a full object id unchanged.

        Raises:
            KnowledgeError: it is not an id, so git could take it for a name or an option.
        """
        if not _OBJECT.fullmatch(id):
            raise KnowledgeError(f"{id!r} is not the full id of an object of {self.location}")
        return id

    def _at(self, commit: str, path: str) -> Iterator[tuple[str, str]]:
        if not path or any(part in ("", ".", "..") for part in path.split("/")):
            return
        out = self._git_output(
            "--literal-pathspecs", "ls-tree", "-z", "--full-tree", self._object(commit), "--", path
        )
        for line in out.split(b"\0"):
            head, _, listed_path = line.partition(b"\t")
            if listed_path == path.encode("utf-8", "surrogateescape"):
                mode, _, blob = head.decode().split()
                yield mode, blob

    def _next_blob(self, stream: BinaryIO, blob: str) -> bytes:
        head = stream.readline().split()
        if len(head) != 3:
            raise KnowledgeError(
                f"{self.location} lacks the object {blob}: "
                "is it a partial clone? Fetch it whole with `git fetch --refetch --no-filter`"
            )
        size = int(head[2])
        data = stream.read(size)
        stream.read(1)
        return data

    def _git_output(self, *arguments: str) -> bytes:
        status, out, error = _git(self._folder, *_NO_PROGRAMS, *arguments)
        if status != 0:
            raise KnowledgeError(f"git could not read {self.location}: {error.strip()}")
        return out

    def _unknown(self, ref: str, error: str) -> KnowledgeError:
        out = self._git_output(
            "for-each-ref", f"--count={REF_LIMIT}", "--format=%(refname:short)",
            "refs/heads", "refs/tags", "refs/remotes",
        )  # fmt: skip
        names = out.decode("utf-8", "replace").split()
        if not names and not self._git_output("rev-list", "--all", "--max-count=1").strip():
            return KnowledgeError(
                f"{self.location} has no commit yet, and a knowledge space is read from one: "
                "commit something, or set knowledge.repo to another repository"
            )
        near = get_close_matches(ref, names, n=5, cutoff=0.4) or names[:5]
        there_is = f"; there is {', '.join(near)}" if near else ""
        reason = f" ({error.strip()})" if error.strip() else ""
        return KnowledgeError(
            f"knowledge.ref is {ref!r}, which names no commit of {self.location}{reason}{there_is}"
        )


def _local_repository(setting: str) -> GitRepository:
    public = _without_password(setting)
    try:
        folder = Path(setting).expanduser().absolute()
    except RuntimeError as error:
        raise KnowledgeError(f"knowledge.repo is {public!r}: {error}") from error
    if not folder.is_dir():
        problem = "is a file" if folder.exists() else "does not exist"
        raise KnowledgeError(
            f"knowledge.repo is {public!r}, but {_without_password(str(folder))} {problem}"
        )
    repository = _discover(folder)
    if repository is None:
        raise KnowledgeError(
            f"knowledge.repo is {folder}, which is no git repository and not inside one"
        )
    return repository


def _surrounding_repository(bundle_folder: Path | None) -> GitRepository:
    """Return the repository whose work tree holds the bundle, else the current folder."""
    current_folder = Path.cwd()
    for folder in (bundle_folder, current_folder):
        repository = _discover(folder) if folder is not None and folder.is_dir() else None
        if repository is not None:
            return repository
    bundle = f"the bundle's folder {bundle_folder} nor " if bundle_folder else ""
    neither = "neither " if bundle_folder else ""
    raise KnowledgeError(
        f"knowledge.repo is empty, and {neither}{bundle}the current folder {current_folder} "
        f"is{'' if bundle_folder else ' not'} in a git repository: set knowledge.repo to a folder or a URL"
    )


def _discover(folder: Path) -> GitRepository | None:
    """Return the repository that a folder is, or is in; None if there is none.

    Raises:
        KnowledgeError: there is one, and git refuses to read it.
    """
    status, out, error = _git(
        folder,
        *_NO_PROGRAMS,
        *("rev-parse", "--is-bare-repository", "--absolute-git-dir", "--show-toplevel"),
    )
    lines = out.decode("utf-8", "surrogateescape").split("\n")
    match lines:
        # A bare repository has no top level: git says the first two and then fails.
        case ["true", git_folder, *_]:
            location = Path(git_folder)
            return GitRepository(
                location, name=location.name.removesuffix(".git"), location=str(location), bare=True
            )
        case ["false", _, top, *_] if status == 0 and top:
            location = Path(top)
            return GitRepository(location, name=location.name, location=str(location), bare=False)
        case _:
            if "not a git repository" in error:
                return None
            raise _access_error(folder, error)


def _access_error(folder: Path, error: str) -> KnowledgeError:
    if "dubious ownership" in error:
        return KnowledgeError(
            f"git refuses to read the repository at {folder}, because another user owns it; "
            f"if you trust it: git config --global --add safe.directory {folder} "
            "(or set knowledge.repo to another)"
        )
    return KnowledgeError(f"knowledge.repo: git cannot read {folder}: {error.strip()}")


def _mirror(
    url: str, ref: str, mirrors: Path | None, timeout_seconds: float, *, fetch: bool
) -> GitRepository:
    """Return the mirror of a remote repository, fetched now, or an older copy when it cannot be fetched.

    It is named by the URL without a password, as past turns record it.
    """
    public = _without_password(url)
    if mirrors is None:
        raise KnowledgeError(f"knowledge.repo is {public}, and there is no folder to mirror it in")
    name = url.rstrip("/").replace(":", "/").rpartition("/")[2].removesuffix(".git") or "repository"
    digest = sha256(public.encode()).hexdigest()[:16]
    folder = mirrors / f"{_UNSAFE_CHARACTER.sub('-', name)}-{digest}.git"
    mirrors.mkdir(mode=0o700, parents=True, exist_ok=True)
    with locked_file(folder.with_suffix(".lock")):
        is_there = (folder / "HEAD").exists()
        failure = _update_mirror(folder, url, timeout_seconds) if fetch or not is_there else ""
    mirror = GitRepository(
        folder,
        name=name,
        location=public,
        bare=True,
        head=_REMOTE_HEAD,
        warnings=(f"{public} could not be fetched, so an older copy is used: {failure}",)
        if failure
        else (),
    )
    if failure:
        try:
            mirror.resolve(ref)
        except KnowledgeError as error:
            raise KnowledgeError(
                f"knowledge.repo is {public}, which could not be fetched; git said: {failure}"
            ) from error
    return mirror


def _update_mirror(folder: Path, url: str, timeout_seconds: float) -> str:
    """Fetch into the mirror; return git's message if that failed, else an empty string."""
    if not (folder / "HEAD").exists():
        folder.mkdir(mode=0o700, exist_ok=True)
        status, _, error = _git(folder, "init", "--quiet", "--bare", ".")
        if status != 0:
            return error.strip()
    status, error = _fetch(folder, url, (*_REFSPECS, f"+HEAD:{_REMOTE_HEAD}"), timeout_seconds)
    if status != 0 and "remote ref HEAD" in error:
        # The remote's HEAD names a branch that has no commit; its other branches may do.
        status, error = _fetch(folder, url, _REFSPECS, timeout_seconds)
    message = " ".join(_without_password(error).split())
    return (message or f"nothing (status {status})") if status != 0 else ""


def _fetch(
    folder: Path, url: str, refspecs: Sequence[str], timeout_seconds: float
) -> tuple[int, str]:
    _, configured, _ = _git(folder, "config", "--get", "core.sshCommand")
    ssh = configured.decode().strip() or "ssh"
    status, _, error = _git(
        folder,
        "-c", f"core.sshCommand={ssh} -oBatchMode=yes -oConnectTimeout=20",
        "-c", "gc.auto=0",
        "-c", "http.lowSpeedLimit=1000",
        "-c", "http.lowSpeedTime=30",
        "-c", f"core.hooksPath={os.devnull}",
        "fetch", "--quiet", "--prune", "--no-tags", "--no-write-fetch-head",
        "--no-recurse-submodules", "--", url, *refspecs,
        timeout_seconds=timeout_seconds,
        environment=_FETCHING,
    )  # fmt: skip
    return status, error


def _without_password(text: str) -> str:
    return _QUERY.sub(r"\1", _PASSWORD.sub(r"\1@", _USER.sub(r"\1", text)))


def _git(
    folder: Path,
    *arguments: str,
    timeout_seconds: float | None = None,
    environment: Mapping[str, str] = _READ_ONLY,
) -> tuple[int, bytes, str]:
    """Return status, output and error text of a git command in a folder.

    Raises:
        KnowledgeError: the folder or git itself is missing.
    """
    # GitPython would quietly run it in the current folder instead.
    if not os.access(folder, os.X_OK):
        raise KnowledgeError(f"knowledge.repo: {folder} is gone or may not be entered")
    status, out, error = Git(str(folder)).execute(
        _command(*arguments),
        with_extended_output=True,
        stdout_as_string=False,
        strip_newline_in_stdout=False,
        with_exceptions=False,
        kill_after_timeout=timeout_seconds,
        env=environment,
    )
    if status == GIT_NOT_FOUND:
        raise KnowledgeError(f"a knowledge space needs git, which could not be run: {error}")
    return status, out, error


def _command(*arguments: str) -> list[str]:
    """Return a git command for the folder it runs in, whatever repository the environment names."""
    return [*_OWN_ENVIRONMENT, "git", *arguments]
