"""Builds the site of the documentation, and the archive of it that the wheel contains.

    python docs/site/build.py FOLDER            the site, in FOLDER/site
    python docs/site/build.py FOLDER --builder mkdocs
                                                the same with Material for MkDocs, as a check of the sources
    python docs/site/build.py FOLDER --package  also `sdk/loopline/cli/pages.zip`, which `loopline docs` serves

The pages are prepared first: links to files that are not pages become text, and the words after the language of a fence, which the
tests read, are removed.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from zipfile import ZIP_LZMA, ZipFile, ZipInfo

SITE = Path(__file__).resolve().parent
DOCS = SITE.parent
ROOT = DOCS.parent
ARCHIVE = ROOT / "sdk" / "loopline" / "cli" / "pages.zip"
ABOUT = "A Python SDK for agents whose every step is recorded and can be read again."
PICTURES = frozenset({".svg", ".png"})
_FENCE = re.compile(r"^(?P<marks> *`{3,})(?P<language>[\w-]+) (?P<words>.+)$", re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[(?P<text>[^\[\]]+)\]\((?P<target>[^()\s]+)\)")
_LINKED = re.compile(r"\]\((?P<target>[^()\s]+)\)")
_EPOCH = (1980, 1, 1, 0, 0, 0)


def prepare(folder: Path) -> None:
    """Copy the pages, the pictures that they show and the settings into `folder`."""
    pictures: set[Path] = set()
    for source in sorted(DOCS.rglob("*.md")):
        text = prepare_page(source)
        target = folder / "pages" / source.relative_to(DOCS)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, "utf-8")
        named = {(source.parent / link["target"]).resolve() for link in _LINKED.finditer(text)}
        pictures |= {path for path in named if path.suffix in PICTURES}
    for source in sorted(pictures):
        target = folder / "pages" / source.relative_to(DOCS)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    shutil.copyfile(SITE / "site.css", folder / "pages" / "site.css")
    shutil.copyfile(SITE / "mkdocs.yml", folder / "mkdocs.yml")


def prepare_page(page: Path) -> str:
    """Return the text of a page as the site's builder needs it."""

    def keep_title(fence: re.Match[str]) -> str:
        titles = [word for word in fence["words"].split() if word.startswith("title=")]
        title = f' title="{titles[-1].removeprefix("title=")}"' if titles else ""
        return f"{fence['marks']}{fence['language']}{title}"

    def keep_inner_link(link: re.Match[str]) -> str:
        target = link["target"].partition("#")[0]
        outside = "://" in target or target.startswith("mailto:")
        if not target or outside or is_on_the_site((page.parent / target).resolve()):
            return link[0]
        return link["text"]

    text = _FENCE.sub(keep_title, page.read_text("utf-8"))
    return _LINK.sub(keep_inner_link, text)


def is_on_the_site(target: Path) -> bool:
    """Return whether a file is a page or a picture of the site."""
    return target.is_relative_to(DOCS) and target.suffix in PICTURES | {".md"} and target.is_file()


def build(folder: Path, builder: str = "zensical") -> Path:
    """Build the site in `folder` and return the folder with its files.

    Raises:
        CalledProcessError: the builder found a dead link or another fault.
    """
    prepare(folder)
    shutil.rmtree(folder / "site", ignore_errors=True)
    subprocess.run(
        [sys.executable, "-m", builder, "build", "--config-file", "mkdocs.yml", "--strict"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT / "sdk")},
        check=True,
    )
    site = folder / "site"
    write_texts(folder / "pages", site)
    return site


def write_texts(pages: Path, site: Path) -> None:
    """Write `llms.txt`, a list of the pages with a sentence about each, and `llms-full.txt`, the text of all of them."""
    listed = [f"# Loopline\n\n> {ABOUT}\n"]
    full: list[str] = []
    for section, entries in navigation().items():
        listed.append(f"\n## {section}\n\n")
        for name in entries:
            text = expand_names((pages / name).read_text("utf-8"))
            title, sentence = describe(text)
            listed.append(f"- [{title}]({address(name)}): {sentence}\n")
            full.append(f"<!-- {name} -->\n\n{text.strip()}\n")
    (site / "llms.txt").write_text("".join(listed), "utf-8")
    (site / "llms-full.txt").write_text("\n".join(full), "utf-8")


def navigation() -> dict[str, list[str]]:
    """Return the pages of each section of the navigation, in its order."""
    sections: dict[str, list[str]] = {}
    section = ""
    for line in (SITE / "mkdocs.yml").read_text("utf-8").partition("\nnav:\n")[2].splitlines():
        entry = re.fullmatch(r"(?P<indent> +)- (?:(?P<title>[^:]+):)? *(?P<page>\S+\.md)?", line)
        if entry is None:
            raise SystemExit(f"not an entry of the navigation: {line}")
        if len(entry["indent"]) == 2:
            section = entry["title"]
        if entry["page"]:
            sections.setdefault(section, []).append(entry["page"])
    return sections


def describe(text: str) -> tuple[str, str]:
    """Return the title of a page and its first sentence, without links."""
    heading, _, rest = text.partition("\n")
    paragraph = rest.strip().partition("\n\n")[0].replace("\n", " ")
    plain = re.sub(r"!?\[([^\[\]]*)\]\([^()]*\)", r"\1", paragraph)
    sentence = re.split(r"(?<=[.:])\s", plain, maxsplit=1)[0]
    return heading.removeprefix("# "), sentence


def address(name: str) -> str:
    """Return the address of a page on the site."""
    folder, _, stem = name.removesuffix(".md").rpartition("/")
    parts = [part for part in (folder, stem) if part not in ("", "README", "index")]
    return f"{'/'.join(parts)}/" if parts else "./"


def expand_names(text: str) -> str:
    """Replace each `::: loopline.name` by the signature and the docstring of the name."""

    def expand(directive: re.Match[str]) -> str:
        module, _, name = directive["path"].rpartition(".")
        value: object = getattr(import_module(module), name)
        signature = ""
        if callable(value):
            with contextlib.suppress(ValueError, TypeError):  # a union of types has none
                signature = str(inspect.signature(value))
        return f"### {name}\n\n```python\n{name}{signature}\n```\n\n{inspect.getdoc(value) or ''}"

    return re.sub(r"^::: (?P<path>[\w.]+)$", expand, text, flags=re.MULTILINE)


def package(site: Path, archive: Path) -> None:
    """Write the files of the site into a ZIP archive, always the same bytes for the same files."""
    with ZipFile(archive, "w") as target:
        for path in files_of(site):
            name = path.relative_to(site).as_posix()
            target.writestr(ZipInfo(name, _EPOCH), path.read_bytes(), ZIP_LZMA)


def files_of(site: Path) -> Iterator[Path]:
    """Yield the files of the site in the order of their names."""
    yield from sorted(path for path in site.rglob("*") if path.is_file())


def main() -> None:
    """Build what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--package", action="store_true")
    parser.add_argument("--builder", choices=["zensical", "mkdocs"], default="zensical")
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    folder.mkdir(parents=True, exist_ok=True)
    site = build(folder.resolve(), arguments.builder)
    if arguments.package:
        package(site, ARCHIVE)


if __name__ == "__main__":
    main()
