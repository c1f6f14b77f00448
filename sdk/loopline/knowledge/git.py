"""Local and remote Git repositories, read at a commit. A user's repository is never written to."""

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
from urllib.parse import unquote

from git import Git

from loopline.errors import KnowledgeError
from loopline.knowledge.repository import LeftOut, RepositoryFile
from loopline.models.safe_text import HTTP_LOGIN, hide_password
from loopline.shared_files import lock_file

_REMOTE = re.compile(r"(?:https?|ssh|git|file)://|\w[\w.-]*@[\w.-]+:(?!//)", re.IGNORECASE)
_LOGIN_REFUSED = re.compile(
    r"Authentication failed|could not read (?:Username|Password)|returned error: 40[13]\b|Permission denied \("
)
_UNSAFE_CHARACTER = re.compile(r"[^\w.-]")
_LINK_MODE = "120000"
_FILE_MODES = frozenset({"100644", "100755", "100664"})
_OBJECT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_FILTER_SETTING = re.compile(r"(filter\..*\.)(?:clean|smudge|process|required)", re.DOTALL)
_EMPTY = "NO_PROGRAM"
_FALSE = "NOT_REQUIRED"
_NO_FILTER = {"clean": _EMPTY, "smudge": _EMPTY, "process": _EMPTY, "required": _FALSE}
_OWN_ENVIRONMENT = (
    "env", "-u", "GIT_DIR", "-u", "GIT_WORK_TREE", "-u", "GIT_INDEX_FILE", "-u", "GIT_PREFIX",
    "-u", "GIT_OBJECT_DIRECTORY", "-u", "GIT_COMMON_DIR", "-u", "GIT_NAMESPACE",
)  # fmt: skip
GIT_NOT_FOUND = 127
# No user can answer a prompt, so git, ssh and credential helpers must fail instead of waiting.
_NO_PROMPT = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "true",
    "SSH_ASKPASS": "true",
    "SSH_ASKPASS_REQUIRE": "force",
    "GCM_INTERACTIVE": "never",
}
# Reading must not lock, write or fetch. Older versions of git don't know GIT_NO_LAZY_FETCH, so all transports are
# forbidden as well.
_READ_ONLY = {
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ALLOW_PROTOCOL": "none",
    _EMPTY: "",
    _FALSE: "false",
    **_NO_PROMPT,
}
_FETCHING = {"GIT_OPTIONAL_LOCKS": "0", **_NO_PROMPT}
_LOGIN_USER, _LOGIN_PASSWORD = "URL_USER", "URL_PASSWORD"
# git appends the name of an operation, which the comment sign hides.
_PRINT_PASSWORD = f"!printf 'password=%s\\n' \"${_LOGIN_PASSWORD}\" #"
# Disables the programs that the configuration of a repository could make git run, except filters: see `_no_filters`.
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
    """A repository that the git command reads. Create it with `GitRepository.open`."""

    def __init__(
        self,
        folder: Path,
        *,
        name: str,
        location: str,
        bare: bool,
        head: str = "HEAD",
    ) -> None:
        self.name = name
        self.location = location
        self.warnings: tuple[str, ...] = ()
        self._folder = folder
        self._bare = bare
        self._head = head
        self._short: dict[str, str] = {}
        self._listed: tuple[str, dict[str, RepositoryFile]] | None = None
        """The commit that was listed last, and its files by path."""

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
        """Open the repository of a `knowledge.repo` setting. Blocks, and uses the network for a URL.

        Args:
            repo: a folder or a URL. If it is empty, the repository that contains the bundle's folder is opened, or the
                repository that contains the current folder.
            ref: a ref that an older mirror must have.
            bundle_folder: the folder of the bundle.
            mirrors: the folder of mirrors. A URL is cloned there and fetched at each opening. If fetching fails, an
                older mirror that has `ref` is used, and `warnings` says so, unless the server refused the login.
            timeout_seconds: the longest time of a fetch.
            fetch: False to use an existing mirror without fetching.

        Raises:
            KnowledgeError: the repository does not exist or cannot be read; the message names the setting.
        """
        setting = repo.strip()
        login = HTTP_LOGIN.match(setting)
        if not (setting + unquote(login[2] if login else "")).isprintable():
            raise KnowledgeError(
                f"knowledge.repo is {hide_password(setting)!r}: it contains characters that cannot be printed"
            )
        if _REMOTE.match(setting):
            return _mirror(setting, ref, mirrors, timeout_seconds, fetch=fetch)
        if "://" in setting:
            raise KnowledgeError(
                f"knowledge.repo is {hide_password(setting)!r}: a URL begins with "
                "https://, http://, ssh://, git:// or file://"
            )
        if setting:
            return _local_repository(setting)
        return _surrounding_repository(bundle_folder)

    def resolve(self, ref: str) -> str:
        """Return the full id of the commit that a branch, tag, abbreviated id or `HEAD` names now.

        Raises:
            KnowledgeError: the ref is empty, starts with `-`, cannot be printed, or does not name a commit.
        """
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
        raise self._unknown_ref(ref, error)

    def abbreviate(self, commit: str) -> str:
        """Return the shortest unique prefix of a full commit id, of at least seven characters."""
        if commit not in self._short:
            out = self._git_output("rev-parse", "--short=7", "--verify", self._object(commit))
            self._short[commit] = out.decode().strip()
        return self._short[commit]

    def entries(self, commit: str) -> Sequence[RepositoryFile]:
        """Return all files of a commit except symbolic links and submodules.

        A path that is not UTF-8 has surrogate escapes. After the first call, git lists only the differences from the
        commit of the previous call.

        Raises:
            KnowledgeError: `commit` is not a full id, or git cannot read the commit.
        """
        files = self._update_listing(commit)
        if files is None:
            files = {
                path: RepositoryFile(path, int(size), blob)
                for mode, kind, blob, size, path in self._tree(commit)
                if kind == "blob" and mode != _LINK_MODE
            }
        self._listed = (commit, files)
        return [*files.values()]

    def _update_listing(self, commit: str) -> dict[str, RepositoryFile] | None:
        """Return the files of this commit by path, from those of the last listed commit and the difference.

        Return None if no commit was listed, or an object of one of the two is missing.
        """
        if self._listed is None:
            return None
        before, listed = self._listed
        status, out, _ = _git(
            self._folder, *_NO_PROGRAMS, "diff-tree", "-r", "-z", "--raw", "--no-renames", "--no-abbrev",
            self._object(before), self._object(commit),
        )  # fmt: skip
        if status != 0:  # the previous commit no longer exists
            return None
        changed: dict[str, str] = {}
        removed: list[str] = []
        fields = out.decode("utf-8", "surrogateescape").split("\0")
        for head, path in zip(fields[::2], fields[1::2], strict=False):
            _, mode, _, blob, _ = head.split()
            if mode in _FILE_MODES:
                changed[path] = blob
            else:
                removed.append(path)
        sizes = self._sizes([*changed.values()])
        if sizes is None:
            return None
        files = listed | {
            path: RepositoryFile(path, size, blob)
            for (path, blob), size in zip(changed.items(), sizes, strict=True)
        }
        for path in removed:
            files.pop(path, None)
        return dict(sorted(files.items())) if removed or len(files) > len(listed) else files

    def _sizes(self, blobs: Sequence[str]) -> list[int] | None:
        """Return the size of each blob; None if a blob is missing."""
        if not blobs:
            return []
        with self._blob_list(blobs) as names:
            out: bytes = Git(str(self._folder)).execute(
                _command(*_NO_PROGRAMS, "cat-file", "--batch-check=%(objectsize)"),
                istream=names.fileno(),
                stdout_as_string=False,
                env=_READ_ONLY,
            )
        sizes = out.decode().splitlines()
        return [*map(int, sizes)] if all(map(str.isdecimal, sizes)) else None

    @contextmanager
    def _blob_list(self, blobs: Sequence[str]) -> Generator[IO[bytes]]:
        """Yield a temporary file with the ids, one per line, as the input of a command."""
        with tempfile.TemporaryFile() as names:
            names.write("".join(f"{self._object(blob)}\n" for blob in blobs).encode())
            names.seek(0)
            yield names

    def list_left_out(self, commit: str) -> Mapping[str, LeftOut]:
        """Return the symbolic links and submodules of a commit by path."""
        return {
            path: "link" if mode == _LINK_MODE else "submodule"
            for mode, kind, _, _, path in self._tree(commit)
            if kind != "blob" or mode == _LINK_MODE
        }

    def _tree(self, commit: str, *paths: str) -> Iterator[tuple[str, str, str, str, str]]:
        """Yield mode, type, id, size ("-" for submodules) and path of each entry of a commit, except folders.

        With `paths`, only those files and the files in those folders are listed.
        """
        out = self._git_output(
            "--literal-pathspecs", "ls-tree", "-r", "-z", "-l", "--full-tree",
            self._object(commit), "--", *paths,
        )  # fmt: skip
        for line in out.decode("utf-8", "surrogateescape").split("\0"):
            head, _, path = line.partition("\t")
            if path:
                mode, kind, blob, size = head.split()
                yield mode, kind, blob, size, path

    def contents(self, blobs: Sequence[str]) -> Iterator[bytes]:
        """Yield the contents of the blobs in their order, read by one `git cat-file` process.

        Raises:
            KnowledgeError: a blob is missing, or git has ended too early.
        """
        if not blobs:
            return
        with self._blob_list(blobs) as names:
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
        """Return the content of one file.

        Raises:
            KnowledgeError: the commit does not have the file; links and submodules are not files.
        """
        if not {"", ".", ".."} & {*path.split("/")}:
            for mode, _, blob, _, listed_path in self._tree(commit, path):
                if listed_path == path and mode.startswith("100"):
                    return self._git_output("cat-file", "blob", blob)
        raise KnowledgeError(f"{self.name} has no file {path!r} at {self.abbreviate(commit)}")

    def count_uncommitted(self) -> int:
        """Return the number of files in the work tree that differ from HEAD, or are new and not ignored.

        The filters of the repository are not run, because they are programs of its author. So a file with a filter
        counts as changed if its time stamp differs. Submodules are not counted.

        Raises:
            KnowledgeError: git cannot read the repository.
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
        """Return the options that disable every configured filter."""
        out = self._git_output("config", "--list", "--name-only", "-z").decode(
            "utf-8", "surrogateescape"
        )
        named = {match[1] for name in out.split("\0") if (match := _FILTER_SETTING.fullmatch(name))}
        # -c would not work for a filter with `=` in its name.
        return [
            f"--config-env={name}{setting}={value}"
            for name in sorted(named)
            for setting, value in _NO_FILTER.items()
        ]

    def _object(self, id: str) -> str:
        """Check that `id` is a full object id, which git cannot interpret as a name or an option, and return it."""
        if not _OBJECT.fullmatch(id):
            raise KnowledgeError(f"{id!r} is not the full id of an object of {self.location}")
        return id

    def _next_blob(self, stream: BinaryIO, blob: str) -> bytes:
        """Read the content of `blob` from git's output; raise a KnowledgeError if it is missing or incomplete."""
        head = stream.readline().split()
        if len(head) == 2:
            raise KnowledgeError(
                f"{self.location} lacks the object {blob}: "
                "is it a partial clone? Fetch it whole with `git fetch --refetch --no-filter`"
            )
        size = int(head[2]) if head else 0
        data = stream.read(size)
        if stream.read(1) != b"\n":
            raise KnowledgeError(
                f"git ended while it read the object {blob} of {self.location}: "
                "check the repository with `git fsck`, and try again"
            )
        return data

    def _git_output(self, *arguments: str) -> bytes:
        status, out, error = _git(self._folder, *_NO_PROGRAMS, *arguments)
        if status != 0:
            raise KnowledgeError(f"git could not read {self.location}: {error.strip()}")
        return out

    def _unknown_ref(self, ref: str, error: str) -> KnowledgeError:
        """Return the error for a ref that is not a commit, with up to five similar branches and tags.

        In a repository without commits the error says that.
        """
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
            f"knowledge.ref is {ref!r}, which is not a commit of {self.location}{reason}{there_is}"
        )


def _local_repository(setting: str) -> GitRepository:
    """Return the repository that contains the folder; raise KnowledgeError if the folder or repository is missing."""
    public = hide_password(setting)
    try:
        folder = Path(setting).expanduser().absolute()
    except RuntimeError as error:
        raise KnowledgeError(f"knowledge.repo is {public!r}: {error}") from error
    if not folder.is_dir():
        problem = "is a file" if folder.exists() else "does not exist"
        raise KnowledgeError(
            f"knowledge.repo is {public!r}, but {hide_password(str(folder))} {problem}"
        )
    repository = _discover(folder)
    if repository is None:
        raise KnowledgeError(
            f"knowledge.repo is {folder}, which is not a git repository and not inside one"
        )
    return repository


def _surrounding_repository(bundle_folder: Path | None) -> GitRepository:
    """Return the repository that contains the bundle's folder or, if there is none, the current folder.

    Raise KnowledgeError if neither folder is in a repository.
    """
    current_folder = Path.cwd()
    for folder in (bundle_folder, current_folder):
        repository = _discover(folder) if folder is not None and folder.is_dir() else None
        if repository is not None:
            return repository
    neither = f"neither the bundle's folder {bundle_folder} nor " if bundle_folder else ""
    raise KnowledgeError(
        f"knowledge.repo is empty, and {neither}the current folder {current_folder} "
        f"is{'' if neither else ' not'} in a git repository: set knowledge.repo to a folder or a URL"
    )


def _discover(folder: Path) -> GitRepository | None:
    """Return the repository that contains the folder; None if it is not in a repository.

    Raise KnowledgeError if git cannot read the repository, for example because another user owns it.
    """
    status, out, error = _git(
        folder, *_NO_PROGRAMS,
        "rev-parse", "--is-bare-repository", "--absolute-git-dir", "--show-toplevel",
    )  # fmt: skip
    match out.decode("utf-8", "surrogateescape").split("\n"):
        # In a bare repository git prints the first two values, and fails at the third.
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
            if "dubious ownership" in error:
                raise KnowledgeError(
                    f"git refuses to read the repository at {folder}, because another user owns it; "
                    f"if you trust it: git config --global --add safe.directory {folder} "
                    "(or set knowledge.repo to another)"
                )
            raise KnowledgeError(f"knowledge.repo: git cannot read {folder}: {error.strip()}")


def _mirror(
    url: str, ref: str, mirrors: Path | None, timeout_seconds: float, *, fetch: bool
) -> GitRepository:
    """Return the mirror of a remote repository in the folder `mirrors`, after fetching it.

    With `fetch=False` an existing mirror is returned as it is; a missing mirror is fetched. If fetching fails, an older copy
    that has `ref` is returned with a warning, but not if the server refused the login. The location of the mirror is the URL without a password, which past turns
    record.
    """
    public = hide_password(url)
    if mirrors is None:
        raise KnowledgeError(f"knowledge.repo is {public}, and there is no folder to mirror it in")
    last_part = public.rstrip("/").replace(":", "/").rpartition("/")[2]
    name = last_part.removesuffix(".git") or "repository"
    digest = sha256(public.encode()).hexdigest()[:16]
    folder = mirrors / f"{_UNSAFE_CHARACTER.sub('-', name)}-{digest}.git"
    mirrors.mkdir(mode=0o700, parents=True, exist_ok=True)
    with lock_file(folder.with_suffix(".lock")):
        must_fetch = fetch or not (folder / "HEAD").exists()
        failure = _update_mirror(folder, url, timeout_seconds) if must_fetch else ""
    mirror = GitRepository(folder, name=name, location=public, bare=True, head=_REMOTE_HEAD)
    if _LOGIN_REFUSED.search(failure):
        raise KnowledgeError(
            f"knowledge.repo is {public}, and its server refused the login; git said: {failure}"
        )
    if failure:
        warning = f"{public} could not be fetched, so an older copy is used: {failure}"
        mirror.warnings = (warning,)
        try:
            mirror.resolve(ref)
        except KnowledgeError as error:
            raise KnowledgeError(
                f"knowledge.repo is {public}, which could not be fetched; git said: {failure}"
            ) from error
    return mirror


def _update_mirror(folder: Path, url: str, timeout_seconds: float) -> str:
    """Create the mirror if it is missing, and fetch; return the error text of git, "" if it succeeded."""
    if not (folder / "HEAD").exists():
        folder.mkdir(mode=0o700, exist_ok=True)
        status, _, error = _git(folder, "init", "--quiet", "--bare", ".")
        if status != 0:
            return error.strip()
    status, error = _fetch(folder, url, (*_REFSPECS, f"+HEAD:{_REMOTE_HEAD}"), timeout_seconds)
    if status != 0 and "remote ref HEAD" in error:
        # HEAD of the remote names a branch without a commit; its other branches may have commits.
        status, error = _fetch(folder, url, _REFSPECS, timeout_seconds)
    message = " ".join(hide_password(error).split())
    return (message or f"nothing (status {status})") if status != 0 else ""


def _fetch(
    folder: Path, url: str, refspecs: Sequence[str], timeout_seconds: float
) -> tuple[int, str]:
    """Fetch the refspecs without prompts and hooks, and remove deleted refs; return git's status and error text."""
    address, login, variables = _split_login(url)
    _, configured, _ = _git(folder, "config", "--get", "core.sshCommand")
    ssh = configured.decode().strip() or "ssh"
    status, _, error = _git(
        folder,
        "-c", f"core.sshCommand={ssh} -oBatchMode=yes -oConnectTimeout=20",
        "-c", "gc.auto=0",
        "-c", "http.lowSpeedLimit=1000",
        "-c", "http.lowSpeedTime=30",
        "-c", f"core.hooksPath={os.devnull}",
        *login,
        "fetch", "--quiet", "--prune", "--no-tags", "--no-write-fetch-head",
        "--no-recurse-submodules", "--", address, *refspecs,
        timeout_seconds=timeout_seconds,
        environment=_FETCHING | variables,
    )  # fmt: skip
    return status, error


def _split_login(url: str) -> tuple[str, list[str], dict[str, str]]:
    """Return an HTTP URL without its user and password, and the git options and environment variables that supply them.

    Other users of the machine can read command lines, but not the environment. git sends the password only to the host of
    the URL, not to the target of a redirect. A URL without a user and a URL of another scheme are returned unchanged.
    """
    match = HTTP_LOGIN.match(url)
    if match is None:
        return url, [], {}
    address = match[1] + url[match.end() :]
    user, colon, password = match[2].partition(":")
    setting = f"credential.{'/'.join(address.split('/')[:3])}"
    options = [f"--config-env={setting}.username={_LOGIN_USER}"]
    if colon:  # the empty value removes the helpers in the user's configuration
        options += ["-c", f"{setting}.helper=", "-c", f"{setting}.helper={_PRINT_PASSWORD}"]
    return address, options, {_LOGIN_USER: unquote(user), _LOGIN_PASSWORD: unquote(password)}


def _git(
    folder: Path,
    *arguments: str,
    timeout_seconds: float | None = None,
    environment: Mapping[str, str] = _READ_ONLY,
) -> tuple[int, bytes, str]:
    """Run a git command in a folder; return its exit status, standard output and error text.

    A command that runs longer than `timeout_seconds` is killed. Raise KnowledgeError if the folder cannot be entered or
    git is not installed.
    """
    # Without this check GitPython would run the command in the current folder.
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
    """Return a git command line that ignores the environment variables which select another repository."""
    return [*_OWN_ENVIRONMENT, "git", *arguments]
