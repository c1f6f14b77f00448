"""The tables on the pages of the models, made of the data: `python -m tests.models.page` writes them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from loopline.models import (
    ATTACHMENTS,
    FAMILIES,
    UNKNOWN,
    VENDORS,
    AttachmentLimits,
    ModelFacts,
    Price,
)
from loopline.models.provider_errors import DOCUMENTED_ERRORS
from tests.docs.pages import ROOT

PAGES = (
    ROOT / "docs" / "sdk" / "models-README.md",
    ROOT / "docs" / "reference" / "model-catalogue.md",
)


def tables() -> dict[str, str]:
    """Each table by the heading it stands under."""
    return {
        "What a family can do": table(
            "family|window|output|forced call|JSON|sees|thinking|off by|efforts"
            "|temperature|API|tail",
            capabilities(),
        ),
        "What a family costs": table(
            "family|input|output|cache read|cache write|write, lasting|longer prompts",
            prices(),
        ),
        "Providers": table("provider|base URL|its variable|the key's variable|wire", providers()),
        "Attachments": table("limit|anthropic|openai", attachments()),
        "Documented errors": table("wire|status|name|means|ask again", refusals()),
    }


def capabilities() -> Iterator[list[str]]:
    yield ["anything else", *facts_row(UNKNOWN)]
    for family, facts in FAMILIES.items():
        yield [code(family), *facts_row(facts)]


def facts_row(facts: ModelFacts) -> list[str]:
    json = {"object": facts.json_mode, "schema": facts.json_schema}
    sees = {"images": facts.vision, "PDF": facts.pdf}
    text = "" if facts.thinking_by == "nothing" else f", {facts.thinking_by}"
    return [
        f"{facts.window:,}",
        f"{facts.output_limit:,}",
        "yes" if facts.tool_choice else "no",
        ", ".join(name for name, can in json.items() if can) or "no",
        ", ".join(name for name, can in sees.items() if can) or "no",
        f"{facts.thinking}{text}",
        facts.thinking_off and code(facts.thinking_off),
        span(facts.efforts),
        facts.temperature,
        f"{facts.api}, {code(facts.output_parameter)}",
        facts.tail,
    ]


def span(efforts: tuple[str, ...]) -> str:
    """The efforts from the least to the greatest."""
    return " ".join(map(code, efforts))


def prices() -> Iterator[list[str]]:
    for family, facts in FAMILIES.items():
        if facts.price is not None:
            long = facts.price.long
            longer = f"over {long.over:,}: {amounts(long.price)}" if long else ""
            yield [code(family), *dollars(facts.price), longer]


def dollars(price: Price) -> list[str]:
    lasting = price.cache_write_long
    four = (price.input, price.output, price.cache_read, price.cache_write)
    return [*(f"{amount:g}" for amount in four), "" if lasting is None else f"{lasting:g}"]


def amounts(price: Price) -> str:
    return " / ".join(amount for amount in dollars(price) if amount)


def providers() -> Iterator[list[str]]:
    for vendor in VENDORS.values():
        key = code(vendor.key_variable) if vendor.key_variable else "no key"
        yield [
            code(vendor.name),
            code(vendor.base_url),
            code(vendor.url_variable),
            key,
            vendor.api_vendor,
        ]


def attachments() -> Iterator[list[str]]:
    columns = [attachment_cells(ATTACHMENTS[wire]) for wire in ("anthropic", "openai")]
    for name in columns[0]:
        yield [name, *(column[name] for column in columns)]


def attachment_cells(limits: AttachmentLimits) -> dict[str, str]:
    types = sorted(kind.removeprefix("image/") for kind in limits.image_types)
    return {
        "request, bytes": number(limits.request_bytes),
        "kinds of image": ", ".join(types),
        "image, bytes": number(limits.image_bytes),
        "image, pixels a side": number(limits.image_pixels),
        "images": f"{limits.images:,}",
        "images, for a window of up to 200,000 tokens": f"{limits.images_small:,}",
        "PDF, bytes": number(limits.pdf_bytes),
        "PDF, pages": number(limits.pdf_pages),
        "PDF, pages, for a window of up to 200,000 tokens": number(limits.pdf_pages_small),
    }


def refusals() -> Iterator[list[str]]:
    for refusal in DOCUMENTED_ERRORS:
        name = code(refusal.name) if refusal.name else ""
        again = "yes" if refusal.again else "no"
        yield [refusal.wire, str(refusal.status), name, refusal.meaning, again]


def number(count: int | None) -> str:
    return "no limit is published" if count is None else f"{count:,}"


def code(text: str) -> str:
    return f"`{text}`"


def table(heads: str, rows: Iterable[list[str]]) -> str:
    names = heads.split("|")
    lines = [names, ["---"] * len(names), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def written(text: str) -> str:
    """The page with every table made anew."""
    for heading, rows in tables().items():
        pattern = rf"(## {re.escape(heading)}\n\n(?:[^|#\n].*\n|\n)*)(?:\|.*\n)+"
        text = re.sub(pattern, rf"\g<1>{rows}", text, count=1)
    return text


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(written(page.read_text("utf-8")), "utf-8")
