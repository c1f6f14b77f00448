"""The files of the web page, which are built from `sdk/web` and are part of the package."""

from __future__ import annotations

import asyncio
from hashlib import sha256
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Header, Request
from fastapi.responses import RedirectResponse, Response

from loopline.server.problems import not_found

router: APIRouter = APIRouter(include_in_schema=False)
FOLDER = Path(__file__).with_name("page")
INDEX = "index.html"
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
"""The types of the files of the page. Files of other types are not served."""
POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "worker-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types worker",
    ]
)
"""Only files of this server run or are requested. No text can become markup: the one trusted type is a worker's address."""


@router.get("/page")
async def redirect_to_page(request: Request) -> Response:
    """Redirect to the page, whose files have paths relative to `/page/`."""
    return RedirectResponse(f"{request.url.path}/")


@router.get("/page/{name:path}")
async def read_page_file(
    name: str, if_none_match: Annotated[str, Header(max_length=200)] = ""
) -> Response:
    """Return a file of the page, or 304 if the client has it already.

    Raises:
        RequestProblem: the page does not have this file, 404.
    """
    name = name or INDEX
    media_type = MEDIA_TYPES.get(Path(name).suffix)
    if media_type is None or name not in await asyncio.to_thread(_file_names):
        raise not_found("such file of the page")
    data = await asyncio.to_thread((FOLDER / name).read_bytes)
    tag = f'"{sha256(data).hexdigest()[:32]}"'
    headers = {"Content-Security-Policy": POLICY, "Cache-Control": "no-cache", "ETag": tag}
    if if_none_match == tag:
        return Response(status_code=304, headers=headers)
    return Response(data, media_type=media_type, headers=headers)


def _file_names() -> frozenset[str]:
    return frozenset(path.name for path in FOLDER.iterdir() if path.is_file())
