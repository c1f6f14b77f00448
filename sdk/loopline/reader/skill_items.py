"""Items of skills: the text of a skill, its short form, or a file in its folder."""

from __future__ import annotations

from base64 import b64decode, b64encode
from dataclasses import replace
from hashlib import sha256

from msgspec import structs

from loopline.errors import RefError
from loopline.files import describe_data
from loopline.reader.items import MARKDOWN, Item, fit_item
from loopline.refs import SkillRef
from loopline.skills import COMPACT_FILE, DIGEST, Skill, Skills, read_folder_file
from loopline.timeline import TextKept, Timeline, citations


def skill_item(
    timeline: Timeline, skills: Skills | None, ref: SkillRef, requested: str, room: int
) -> Item:
    """Return an item for the ref of a skill: the text that the conversation showed before, else the present text.

    The item is "gone" if the ref has the digest of a text that was not shown. If the full text of a skill does not
    fit, the item is its short form.

    Raises:
        RefError: the skill, the file or the lines do not exist, or the stored bytes are not valid base64.
    """
    stored = _find_kept_item(timeline, ref, requested, room)
    if stored is not None:
        return stored
    try:
        skill = (skills or Skills()).find(ref.namespace, ref.skill)
        if ref.path:
            return _file_item(timeline, skill, ref, requested, room)
    except RefError as error:
        shown = _find_shown_ref(timeline, ref)
        raise RefError(f"{error}; shown before as {shown}" if shown else str(error)) from error
    if ref.digest is not None and not skill.digest.startswith(ref.digest):
        return _report_changed(requested, skill.ref)
    pinned = structs.replace(ref, digest=skill.digest)
    if ref.span is None and skill.compact and len(skill.body) > room >= len(skill.compact):
        return _short_item(skill, requested, room)
    stored = _find_kept_item(timeline, pinned, requested, room)
    if stored is not None:
        return stored
    item = fit_item(pinned, requested, skill.body, MARKDOWN, room)
    text_kept = TextKept(ref=skill.ref, text=skill.body, title=skill.name, mime=MARKDOWN)
    return _record_shown(item, text_kept, skill)


def _find_shown_ref(timeline: Timeline, ref: SkillRef) -> str:
    """Return the newest pinned ref under which the conversation showed the skill or file, or ""."""
    moving = f"{structs.replace(ref, span=None, digest=None)}@"
    return next((name for name in reversed(timeline.kept_texts) if name.startswith(moving)), "")


def _record_shown(item: Item, kept: TextKept, skill: Skill) -> Item:
    """Return the item with the body to record when it is shown, and with its sources; unchanged without a text."""
    if not item.text:
        return item
    numbers = citations.find_unbound_numbers(kept.text, max(skill.sources, default=0))
    cites = {number: skill.sources[number] for number in numbers if number in skill.sources}
    return replace(item, title=kept.title, kept=kept, cites=cites)


def _find_kept_item(timeline: Timeline, ref: SkillRef, requested: str, room: int) -> Item | None:
    """Return an item with the text that the conversation showed under the pinned ref, or None.

    Raises:
        RefError: the stored bytes of the file, which an import does not check, are not valid base64.
    """
    stored = timeline.kept_texts.get(str(structs.replace(ref, span=None)))
    if stored is None or ref.digest is None:
        return None
    mime = stored.mime if ref.path else MARKDOWN
    item = fit_item(ref, requested, stored.text, mime, room)
    try:
        data = b64decode(stored.data)
    except ValueError as error:
        raise RefError(f"{str(ref)!r}: its stored bytes are not valid base64: {error}") from error
    return replace(item, title=stored.title, data=data)


def _report_changed(requested: str, now: str) -> Item:
    message = f"the skill has changed since and was not shown here: now {now}"
    return Item(ref=requested, requested=requested, status="gone", message=message)


def _short_item(skill: Skill, requested: str, room: int) -> Item:
    """Return an item with the short form of a skill whose full text does not fit."""
    digest = sha256(skill.compact.encode()).hexdigest()[:DIGEST]
    ref = SkillRef(namespace=skill.namespace, skill=skill.id, path=COMPACT_FILE, digest=digest)
    item = fit_item(ref, requested, skill.compact, MARKDOWN, room)
    text_kept = TextKept(ref=str(ref), text=skill.compact, title=skill.name, mime=MARKDOWN)
    message = f"this is the short form; the full text did not fit: read {skill.ref} alone"
    return replace(_record_shown(item, text_kept, skill), status="cut", message=message)


def _file_item(timeline: Timeline, skill: Skill, ref: SkillRef, requested: str, room: int) -> Item:
    """Return the item of a file in a skill's folder, with its ref pinned by the digest.

    For another digest in `ref` the item is "gone". A file that was shown before is returned as it was stored then.

    Raises:
        RefError: the file does not exist or is too large.
    """
    data = read_folder_file(skill.path.parent, ref.path)
    digest = sha256(data).hexdigest()[:DIGEST]
    pinned = structs.replace(ref, digest=digest)
    whole_ref = str(structs.replace(pinned, span=None))
    if ref.digest is not None and not digest.startswith(ref.digest):
        return _report_changed(requested, whole_ref)
    stored = _find_kept_item(timeline, pinned, requested, room)
    if stored is not None:
        return stored
    described = describe_data(ref.path, data)
    text = citations.unbind(described.text)
    text_kept = TextKept(
        ref=whole_ref,
        text=text,
        title=f"{skill.name}: {ref.path}",
        mime=described.mime,
        data="" if described.is_text else b64encode(data).decode(),
    )
    item = fit_item(pinned, requested, text, described.mime, room)
    return replace(_record_shown(item, text_kept, skill), data=data)
