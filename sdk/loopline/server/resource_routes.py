"""Resources: messages, files and sources by resource name, and downloads by signed URLs that expire."""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256
from http import HTTPStatus
from typing import Annotated, Literal
from urllib.parse import quote

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel

from loopline.errors import RefError
from loopline.reader import Item
from loopline.refs import FileRef, HostedRef, SourcesRef, parse
from loopline.server.access import CallerDep, HostDep
from loopline.server.bodies import ResourceBody
from loopline.server.bundle_host import PATH as FILES
from loopline.server.bundle_host import BundleHost
from loopline.server.principals import Principal
from loopline.server.problems import RequestProblem, not_found
from loopline.timeline import BodyUnion, ConversationKey, FileAdded, is_hosted, turn_number

router: APIRouter = APIRouter(tags=["resources"])
ContentType = Literal["message", "file", "execution", "citable"]
SHOWN_INLINE = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp", "text/plain"})
"""The media types that a browser may display. None of them can contain a script."""
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


@router.get(FILES, response_class=Response, responses={206: {}, 416: {}})
async def download(
    host: HostDep,
    rn: Annotated[str, Query(max_length=4_096)],
    expires: Annotated[int, Query(ge=0, le=2**53)],
    signature: Annotated[str, Query(pattern=r"^[0-9a-f]{64}$")],
    show: Literal["download", "preview"] = "download",
    byte_range: Annotated[str, Header(alias="Range", max_length=100)] = "",
) -> Response:
    """Return a file by its signed URL, or a range of it."""
    if not host.urls.is_valid(rn, expires, signature):
        raise RequestProblem(
            HTTPStatus.FORBIDDEN, "the URL was not signed here, or has expired: ask for a new one"
        )
    await host.open()
    resource = await _find(host, _parse_name(rn))
    return _file_response(resource, byte_range, in_browser=show == "preview")


def _parse_name(rn: str) -> HostedRef:
    """Parse a resource name.

    Raises:
        RequestProblem: the text is not a resource name, 422.
    """
    try:
        name = parse(rn)
    except RefError as error:
        raise RequestProblem(HTTPStatus.UNPROCESSABLE_ENTITY, str(error)) from error
    if not isinstance(name, HostedRef):
        raise RequestProblem(HTTPStatus.UNPROCESSABLE_ENTITY, "a resource name begins with ef:")
    return name


def _may_read(caller: Principal, name: HostedRef) -> bool:
    is_of_project = (name.tenant, name.project) == (caller.tenant, caller.project)
    return is_of_project and (name.user_id == caller.user or caller.is_privileged)


async def _find(host: BundleHost, name: HostedRef) -> _Resource:
    """Read the resource of a name.

    Raises:
        RequestProblem: the resource does not exist, or is not for users, 404.
    """
    key = ConversationKey(
        name=name.conversation, user=name.user_id, tenant=name.tenant, project=name.project
    )
    location = _locate(name)
    if location is None or await host.log.find(key) is None:
        raise not_found("resource of this name")
    content_type, ref = location
    if name.stage == "file" and not await _is_external(host, key, ref):
        raise not_found("resource of this name")
    conversation = await host.conversation(key)
    reading = await conversation.read(ref)
    item = reading.items[0]
    if not item.readable:
        raise not_found("resource of this name")
    return _Resource(content_type, name, item)


async def _is_external(host: BundleHost, key: ConversationKey, ref: str) -> bool:
    """Return whether the file of a ref is for users, not for the agent alone."""
    turn = turn_number(ref.removeprefix("fi:").partition(".")[0])
    blocks = await host.log.read(key, types=["file.added"], turn=turn)
    files = (body for block, body in _FILES.among(blocks) if block.ref == ref)
    return any(map(is_hosted, files))


def _locate(name: HostedRef) -> tuple[ContentType, str] | None:
    """Return the content type of a hosted resource, and the ref by which its conversation can read it.

    The stage of the name decides: `message`, `attachment`, `file` or `citable`. Return None if the stage is another one, or
    if the turn or the path is malformed. The existence of the resource is not checked.
    """
    turn = name.turn_id
    path = name.path
    if not turn_number(turn):
        return None
    match name.stage:
        case "message":
            return "message", f"ar:{turn}.{path}"
        case "attachment":
            ref = FileRef(turn_id=turn, area="user.attachments", path=path)
            return "file", str(ref)
        case "file":
            match = _FILE_PATH.fullmatch(path)
            if match is None:
                return None
            version = int(match[1])
            ref = FileRef(turn_id=turn, area="outputs", path=match[2], version=version)
            return "file", str(ref)
        case "citable" if _SID.fullmatch(path):
            sid = int(path.rpartition(".")[2])
            return "citable", str(SourcesRef(ranges=((sid, sid),)))
        case _:
            return None


def _file_response(resource: _Resource, byte_range: str, *, in_browser: bool) -> Response:
    """Return the file, or a range of it, with headers that keep its scripts from running in a page of this server."""
    data = resource.data
    mime = resource.item.mime.partition(";")[0].strip()
    if mime.startswith("text/") or mime == "application/json":
        mime = "text/plain"  # all texts are shown as plain text, HTML too
    is_safe = mime in SHOWN_INLINE
    name = resource.name.path.rpartition("/")[2]
    disposition = "inline" if in_browser and is_safe else "attachment"
    headers = {
        **_SAFE_HEADERS,
        "Content-Disposition": f"{disposition}; filename*=UTF-8''{quote(name, safe='')}",
        "ETag": f'"{sha256(data).hexdigest()[:32]}"',
    }
    if mime == "text/plain":
        media_type = "text/plain; charset=utf-8"
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
