"""The start page and the page `/docs`, which describe the routes without scripts and without other files."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256
from html import escape
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from msgspec import Struct, convert, field

from loopline.models import Json, JsonObject

router: APIRouter = APIRouter(include_in_schema=False)
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
code, pre { font: 14px/1.4 ui-monospace, monospace } pre { overflow: auto; background: #8882; padding: .5rem }
summary { cursor: pointer } details { margin: .3rem 0 } :root { color-scheme: light dark }
"""
_POLICY = (
    f"default-src 'none'; style-src 'sha256-{b64encode(sha256(_STYLE.encode()).digest()).decode()}'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_SCHEMA_REF = re.compile(r"#/components/schemas/([\w.-]{1,200})")


class _Content(Struct, frozen=True):
    """A body of one media type."""

    body: Json = field(name="schema")


class _Body(Struct, frozen=True):
    """The bodies of an operation by media type."""

    content: dict[str, _Content] = {}


class _Parameter(Struct, frozen=True):
    """A parameter, its place in a request, and its schema."""

    name: str
    place: str = field(name="in")
    kind: Json = field(name="schema")
    required: bool = False


class _Operation(Struct, frozen=True, rename="camel"):
    """An operation of the OpenAPI document."""

    summary: str
    description: str = ""
    parameters: tuple[_Parameter, ...] = ()
    request_body: _Body = _Body()

    @property
    def title(self) -> str:
        """The first line of the description."""
        return (self.description or self.summary).partition("\n")[0]


_BY_ACCEPT = {"Vary": "Accept"}


@router.get("/")
async def show_index(request: Request) -> Response:
    """Return the name and version of the server, and the first line of the description of each route.

    A browser, which accepts HTML, is redirected to the page.
    """
    document: dict[str, Any] = request.app.openapi()
    prefix = request.url.path.rstrip("/")
    if "text/html" in request.headers.get("accept", ""):
        return RedirectResponse(f"{prefix}/page/", headers=_BY_ACCEPT)
    routes: JsonObject = {
        f"{method.upper()} {path}": operation.title
        for path, method, operation in _operations(document)
    }
    info = document["info"]
    return JSONResponse(
        {
            "name": info["title"],
            "version": info["version"],
            "docs": f"{prefix}/docs",
            "openapi": f"{prefix}/openapi.json",
            "routes": routes,
        },
        headers=_BY_ACCEPT,
    )


@router.get("/docs")
async def show_docs(request: Request) -> Response:
    """Return a page that describes all routes with their parameters, their bodies and the schemas."""
    document: dict[str, Any] = request.app.openapi()
    schemas: dict[str, Any] = document["components"]["schemas"]
    title = escape(f"{document['info']['title']} {document['info']['version']}")
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title><style>{_STYLE}</style>",
        f"<h1>{title}</h1><p>{escape(document['info']['description'])} "
        "The same as a document: <a href=openapi.json>openapi.json</a>.",
        "<p>With keys, send <code>Authorization: Bearer KEY</code>; <code>GET /me</code> names the "
        "tenant and the project of a key for the paths.<h2>Routes</h2>",
        *(_operation_html(*operation) for operation in _operations(document)),
        "<h2>Schemas</h2>",
        *(_details(escape(name), _json_html(schema), name) for name, schema in schemas.items()),
    ]
    headers = {"Content-Security-Policy": _POLICY}
    return HTMLResponse("\n".join(parts), headers=headers)


def _operations(document: dict[str, Any]) -> Iterator[tuple[str, str, _Operation]]:
    """Yield the path, the method and the description of each operation in an OpenAPI document."""
    paths = convert(document["paths"], dict[str, dict[str, _Operation]])
    for path, methods in paths.items():
        for method, operation in methods.items():
            yield path, method, operation


def _operation_html(path: str, method: str, operation: _Operation) -> str:
    """Render an operation as a collapsible element: description, parameters and bodies, with all texts escaped."""
    rows = [
        f"<li><code>{escape(row.name)}</code> in the {escape(row.place)}"
        f"{', required' if row.required else ''}: {_json_html(row.kind)}"
        for row in operation.parameters
    ]
    bodies = [
        f"<p>Body, {escape(media)}:{_json_html(content.body)}"
        for media, content in operation.request_body.content.items()
    ]
    text = f"<p>{escape(operation.description)}<ul>{''.join(rows)}</ul>{''.join(bodies)}"
    name = f"<code>{method.upper()} {escape(path)}</code> {escape(operation.title)}"
    return _details(name, text, f"{method}-{path}")


def _details(summary: str, text: str, name: str) -> str:
    return f'<details id="{escape(name)}"><summary>{summary}</summary>{text}</details>'


def _json_html(value: object) -> str:
    """Render a schema as JSON, with links to other schemas."""
    text = escape(json.dumps(value, indent=2, ensure_ascii=False), quote=False)
    linked = _SCHEMA_REF.sub(r'<a href="#\1">\1</a>', text)
    return f"<pre>{linked}</pre>"
