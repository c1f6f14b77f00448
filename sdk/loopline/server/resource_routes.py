"""Resources: messages, files and sources by resource name, and downloads by signed URLs that expire."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from hashlib import sha256
from http import HTTPStatus
from typing import Annotated, Literal
from urllib.parse import quote

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import RedirectResponse, Response
from msgspec import structs
from pydantic import BaseModel

from loopline.errors import LooplineError, RefError
from loopline.reader import Item, Reading
from loopline.refs import ConversationRef, FileRef, HostedRef, SourcesRef, parse, replace_span
from loopline.server.access import CallerDep, HostDep
from loopline.server.bodies import ResourceBody
from loopline.server.bundle_host import PATH as FILES
from loopline.server.bundle_host import BundleHost, FileHost
from loopline.server.principals import Principal
from loopline.server.problems import PROBLEMS, forbidden, not_found
from loopline.timeline import BodyUnion, ConversationKey, FileAdded, is_hosted, turn_number

router: APIRouter = APIRouter(tags=["resources"], responses=PROBLEMS)
ContentType = Literal["message", "file", "execution", "citable"]
SHOWN_INLINE = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp", "text/plain"})
"""The media types that a browser may display. None of them can contain a script."""
LARGE_BYTES = 32 * 1024
"""A longer file is downloaded from the bucket of the blobs, if its URLs are presigned."""
_FILES = BodyUnion[FileAdded](FileAdded)
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")
_FILE_PATH = re.compile(r"([1-9]\d{0,8})/(.+)", re.DOTALL)
_SID = re.compile(r"source\.added\.[1-9]\d{0,8}|[1-9]\d{0,8}")
_SAFE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "Cross-Origin-Resource-Policy": "same-site",
    "Cache-Control": "private, no-store",
    "Accept-Ranges": "bytes",
}


class ResourceMetadata(BaseModel):
    """The media type, the ref and the URLs of a resource."""

    mime: str
    uri: str
    preview_url: str | None = None
    download_url: str | None = None
    is_binary: bool = False


class ResourceAnswer(BaseModel):
    """A resource: the text of a message, or the URLs of a file."""

    rn: str
    content_type: ContentType
    content: str
    metadata: ResourceMetadata


@dataclass(frozen=True, slots=True)
class _Resource:
    """A resource: its type, its resource name, and the item that was read."""

    content_type: ContentType
    name: HostedRef
    item: Item

    @property
    def data(self) -> bytes:
        """The bytes of a file, or of a text in UTF-8."""
        return self.item.data or self.item.text.encode()

    @property
    def is_file(self) -> bool:
        """Whether it is downloaded, not shown as a message."""
        return self.content_type in ("file", "execution")


@router.post("/by-rn")
async def read_by_name(
    host: HostDep, caller: CallerDep, body: ResourceBody, request: Request
) -> ResourceAnswer:
    """Return the resource of a name, if the caller may read its conversation."""
    name = _parse_name(body.rn)
    if not _may_read(caller, name):
        raise not_found("resource of this name")
    resource = await _find(host, name)
    link = None
    if resource.is_file:
        path = FILES if host.urls.base else request.url_for("download").path
        link = f"{host.urls.begin(path)}?{host.urls.query(name)}"
    return ResourceAnswer(
        rn=str(name),
        content_type=resource.content_type,
        content="" if resource.item.data else resource.item.text,
        metadata=ResourceMetadata(
            mime=resource.item.mime,
            uri=resource.item.ref,
            preview_url=link and f"{link}&show=preview",
            download_url=link,
            is_binary=bool(resource.item.data),
        ),
    )


@router.get(FILES, response_class=Response, responses={206: {}, 307: {}, 416: {}})
async def download(
    host: HostDep,
    rn: Annotated[str, Query(max_length=4_096)],
    expires: Annotated[int, Query(ge=0, le=2**53)],
    signature: Annotated[str, Query(pattern=r"^[0-9a-f]{64}$")],
    show: Literal["download", "preview"] = "download",
    byte_range: Annotated[str, Header(alias="Range", max_length=100)] = "",
) -> Response:
    """Return a file by its signed URL, or a range of it, or the place of a large file in the bucket of the blobs."""
    if not host.urls.is_valid(rn, expires, signature):
        raise forbidden("the URL was not signed here, or has expired: ask for a new one")
    await host.open()
    resource = await _find(host, _parse_name(rn))
    if host.file_host is not None and show == "download" and len(resource.data) > LARGE_BYTES:
        return await asyncio.to_thread(_redirect, host.file_host, resource, host.urls.seconds)
    return _file_response(resource, byte_range, in_browser=show == "preview")


def _redirect(file_host: FileHost, resource: _Resource, seconds: int) -> Response:
    """Return the answer that sends the browser to a copy in the bucket, which is always downloaded. It blocks."""
    url = file_host.host(
        f"{resource.name} {sha256(resource.data).hexdigest()}",
        resource.data,
        mime="application/octet-stream",
        disposition=_disposition("attachment", resource),
        valid_for=timedelta(seconds=seconds),
    )
    return RedirectResponse(url, headers={"Cache-Control": "private, no-store"})


def _disposition(kind: str, resource: _Resource) -> str:
    name = resource.name.path.rpartition("/")[2]
    return f"{kind}; filename*=UTF-8''{quote(name, safe='')}"


def _parse_name(rn: str) -> HostedRef:
    name = parse(rn)
    if not isinstance(name, HostedRef):
        raise LooplineError("a resource name begins with ef:")
    return name


def _may_read(caller: Principal, name: HostedRef) -> bool:
    is_of_project = (name.tenant, name.project) == (caller.tenant, caller.project)
    return is_of_project and (name.user_id == caller.user or caller.is_privileged)


async def _find(host: BundleHost, name: HostedRef) -> _Resource:
    """Return the resource of the first ref of the name that can be read; raise a 404 problem if none can."""
    key = ConversationKey(
        name=name.conversation, user=name.user_id, tenant=name.tenant, project=name.project
    )
    content_type = CONTENT_TYPES.get(name.stage)
    if content_type is not None and await host.log.find(key) is not None:
        for ref in local_refs(name):
            [item] = (await read_for_user(host, key, [ref])).items
            if item.readable:
                return _Resource(content_type, name, item)
    raise not_found("resource of this name")


async def read_for_user(host: BundleHost, key: ConversationKey, refs: Sequence[str]) -> Reading:
    """Read refs of a conversation for its user, in their order.

    Outputs for the agent alone ("internal") are missing. A resource name (`ef:`) of a conversation of the same user is read
    as the ref that it refers to.
    """
    conversation = await host.reader(key)
    choices = [_readable_refs(key, requested) for requested in refs]
    first = await conversation.read([choice[0] for choice in choices])
    items: list[Item] = []
    for requested, choice, item in zip(refs, choices, first, strict=True):
        for ref in choice[1:]:
            if not item.readable:
                [item] = await conversation.read(ref)
        if item.readable and await _is_internal(host, key, item.ref):
            message = f"{item.ref} is an output for the agent alone"
            item = Item(ref=requested, requested=requested, status="missing", message=message)
        items.append(replace(item, requested=requested.strip()))
    return Reading(items)


def _readable_refs(key: ConversationKey, requested: str) -> Sequence[str]:
    """Return the refs to try for a requested ref, in order.

    A resource name of the same user is converted to the refs that it may refer to; any other ref is returned unchanged.
    """
    try:
        name = parse(requested)
    except RefError:
        return [requested]
    owner = (key.tenant, key.project, key.user)
    if not isinstance(name, HostedRef) or (name.tenant, name.project, name.user_id) != owner:
        return [requested]
    refs = [parse(ref) for ref in local_refs(name)]
    if name.conversation != key.name:
        refs = [ConversationRef(conversation=name.conversation, ref=ref) for ref in refs]
    return [str(ref) for ref in refs] or [requested]


async def _is_internal(host: BundleHost, key: ConversationKey, ref: str) -> bool:
    """Return whether a ref names a file in `outputs` for the agent alone, or one without a stored block."""
    parsed = parse(ref)
    if isinstance(parsed, ConversationRef):
        key = structs.replace(key, name=parsed.conversation)
        parsed = parsed.ref
    if not isinstance(parsed, FileRef) or parsed.area != "outputs":
        return False
    pinned = str(replace_span(parsed, None))
    turn = turn_number(parsed.turn_id)
    blocks = await host.log.read(key, types=["file.added"], turn=turn)
    files = (body for block, body in _FILES.among(blocks) if block.ref == pinned)
    return not any(map(is_hosted, files))


CONTENT_TYPES: Mapping[str, ContentType] = {
    "message": "message",
    "attachment": "file",
    "file": "file",
    "execution": "execution",
    "citable": "citable",
}
"""The content types of resources by the stage of their name."""


def local_refs(name: HostedRef) -> list[str]:
    """Return the refs by which the conversation of a resource can read it: the first that exists counts.

    The path of a file begins with its version, or has none and means the newest version. The path of an `execution` is
    `out:` or `work:` and a file in `outputs/` or `files/`. The list is empty if the stage, the turn or the path is malformed.
    """
    turn = name.turn_id
    path = name.path
    if not turn_number(turn):
        return []
    match name.stage:
        case "message":
            return [f"ar:{turn}.{path}"]
        case "attachment":
            return [str(FileRef(turn_id=turn, area="user.attachments", path=path))]
        case "file":
            newest = str(FileRef(turn_id=turn, area="outputs", path=path))
            match = _FILE_PATH.fullmatch(path)
            if match is None:
                return [newest]
            version = int(match[1])
            return [
                str(FileRef(turn_id=turn, area="outputs", path=match[2], version=version)),
                newest,
            ]
        case "execution" if path.startswith("out:"):
            return [str(FileRef(turn_id=turn, area="outputs", path=path.removeprefix("out:")))]
        case "execution" if path.startswith("work:"):
            return [str(FileRef(turn_id=turn, area="files", path=path.removeprefix("work:")))]
        case "citable" if _SID.fullmatch(path):
            sid = int(path.rpartition(".")[2])
            return [str(SourcesRef(ranges=((sid, sid),)))]
        case _:
            return []


def _file_response(resource: _Resource, byte_range: str, *, in_browser: bool) -> Response:
    """Return the file, or a range of it with 206, with headers that keep its scripts from running in a page here.

    A range outside of the file is answered with 416, and a malformed range is ignored. Only types in `SHOWN_INLINE` are
    shown in the browser.
    """
    data = resource.data
    mime = resource.item.mime.partition(";")[0].strip()
    if mime.startswith("text/") or mime == "application/json":
        mime = "text/plain"  # all texts are shown as plain text, HTML too
    is_safe = mime in SHOWN_INLINE
    headers = {
        **_SAFE_HEADERS,
        "Content-Disposition": _disposition(
            "inline" if in_browser and is_safe else "attachment", resource
        ),
        "ETag": f'"{sha256(data).hexdigest()[:32]}"',
    }
    if mime == "text/plain":
        charset = resource.item.mime.partition("; charset=")[2]
        media_type = f"text/plain; charset={charset or 'utf-8'}"
    elif is_safe:
        media_type = mime
    else:
        media_type = "application/octet-stream"
    bounds = _parse_range(byte_range, len(data))
    if bounds is None:
        return Response(data, 200, headers, media_type)
    first, last = bounds
    if first > last:
        headers["Content-Range"] = f"bytes */{len(data)}"
        return Response(b"", HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, headers, media_type)
    headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
    return Response(data[first : last + 1], HTTPStatus.PARTIAL_CONTENT, headers, media_type)


def _parse_range(text: str, size: int) -> tuple[int, int] | None:
    """Parse a `Range` header to the first and the last byte; None means all bytes.

    If the range is outside of the file, the first byte is after the last one.
    """
    match = _RANGE.fullmatch(text.strip())
    if match is None or not (match[1] or match[2]):
        return None
    if not match[1]:
        count = int(match[2])
        return (max(size - count, 0), size - 1) if count else (1, 0)
    first = int(match[1])
    last = min(int(match[2]), size - 1) if match[2] else size - 1
    if match[2] and int(match[2]) < first:
        return None
    return (first, last) if first < size else (1, 0)
