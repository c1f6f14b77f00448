"""Hosting: the resource names and the URLs of files that a workflow makes for its user."""

from __future__ import annotations

from typing import Protocol

from loopline.errors import LooplineError
from loopline.refs import FileRef, HostedRef, parse
from loopline.timeline import BodyUnion, FileAdded, Recorder, hosted_name, is_hosted

_FILES = BodyUnion[FileAdded](FileAdded)


class HostFile(Protocol):
    """Makes the URLs of files. A URL is valid for a limited time, and may be made as often as it is wanted."""

    def __call__(self, name: HostedRef, file: FileAdded, /) -> str:
        """Return a URL of the file of that name."""
        ...


class ApplicationHostingService:
    """The outputs of the workflow's conversation as its user can get them."""

    def __init__(self, recorder: Recorder, host_file: HostFile) -> None:
        self._recorder = recorder
        self._host_file = host_file

    def get_artifact_url(self, ref: str) -> str:
        """Return a URL of an output, which expires; who has it can read the file.

        Under a server it is signed, otherwise it is that of a file of this machine.

        Raises:
            LooplineError: the ref names no output for users in the turns that the conversation holds open.
        """
        return self._host_file(*self._named(ref))

    def resource_name(self, ref: str) -> str:
        """Return the name of an output, `ef:…`, which locates it and gives no right to read it.

        Raises:
            LooplineError: the ref names no output for users in the turns that the conversation holds open.
        """
        name, _ = self._named(ref)
        return str(name)

    def _named(self, ref: str) -> tuple[HostedRef, FileAdded]:
        named, recorder = parse(ref), self._recorder
        if not isinstance(named, FileRef) or named.area != "outputs":
            raise LooplineError(f"{ref} names no output: only files below outputs/ are hosted")
        block = recorder.timeline.find(named)
        if block is None:
            raise LooplineError(
                f"{ref} names no output of this turn, or of one since the last summary: store it again with "
                "self.store.put_attachment"
            )
        if not _FILES.has(block.body) or not is_hosted(block.body):
            raise LooplineError(f"{ref} is for the agent alone: make it with visibility='external'")
        return hosted_name(recorder.conversation, block.turn_id, block.body), block.body


def no_hosting(name: HostedRef, file: FileAdded) -> str:
    """Refuse to host a file where nothing hosts files.

    Raises:
        LooplineError: always.
    """
    del file
    raise LooplineError(f"{name} cannot be hosted: no URLs of files are made here")
