"""A script that inspects a ZIP archive and reads an Office document, with limits for its time and memory.

It reads the file from stdin, and prints the type and the text of the file, or the problem with it, as JSON. It imports
only the standard library. The formats: ZIP (APPNOTE 6.3), Open Packaging Conventions (ECMA-376, part 2), and
WordprocessingML, PresentationML and SpreadsheetML (part 1).
"""

from __future__ import annotations

import io
import json
import re
import resource
import sys
import zipfile
import zlib
from collections import defaultdict
from xml.parsers import expat

ENTRIES = 2_000
UNPACKED_BYTES = 120 * 1024 * 1024
RATIO = 200
SMALL_BYTES = 1024 * 1024
"""Entries up to this size may exceed `RATIO`."""
TEXT_CHARACTERS = 400_000
PIECE_BYTES = 64 * 1024
CONTENT_TYPES = "[Content_Types].xml"
_MAIN_PARTS = {
    "word/document.xml": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    "ppt/presentation.xml": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
    "xl/workbook.xml": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
}
_TEXT_PARTS = re.compile(
    r"word/(?:document|footnotes|endnotes)\.xml|ppt/slides/slide[0-9]{1,6}\.xml"
    r"|xl/sharedStrings\.xml|xl/worksheets/sheet[0-9]{1,6}\.xml"
)
_BREAKS = frozenset({"p", "br", "row", "si"})
_TABS = frozenset({"tab", "c"})
_TEXTS = frozenset({"t", "v"})
_MACROS = ("vbaproject", "macroenabled", "ms-office.activex")
_ACTIVE_PARTS = re.compile(r"(?i)vba(?:project|data)|/activex/|/embeddings/oleobject|/macrosheets/")
_PARTS = re.compile(
    r"(?i)\[Content_Types\]\.xml|(?:.{0,200}/)?_rels/[^/]*\.rels|.*/"
    r"|docProps/[^/]+|docMetadata/LabelInfo\.xml|_xmlsignatures/[^/]+|customXml/item(?:Props)?[0-9]*\.xml"
    r"|word/(?:glossary/)?(?:document|styles|stylesWithEffects|settings|webSettings|fontTable|numbering|footnotes|endnotes"
    r"|comments[a-z]*|people|header[0-9]*|footer[0-9]*|bibliography)\.xml"
    r"|ppt/(?:presentation|presProps|viewProps|tableStyles|commentAuthors|authors|revisionInfo)\.xml"
    r"|xl/(?:workbook|sharedStrings|styles|calcChain|metadata|xmlMaps|comments[0-9]*)\.xml"
    r"|(?:word|ppt|xl)/(?:glossary/)?(?:media|theme|charts|chartsheets|chartEx|diagrams|drawings|ink|fonts|printerSettings"
    r"|slides|slideLayouts|slideMasters|notesSlides|notesMasters|handoutMasters|tags|changesInfos|comments|threadedComments"
    r"|persons|worksheets|tables|pivotTables|pivotCache|slicers|slicerCaches|timelines|timelineCaches|customProperty"
    r"|richData|featurePropertyBag|namedSheetViews|revisions)/[^/]+"
)
"""The names of parts that a document may have: those of ECMA-376, part 1, sections 11 to 15, and of the extensions [MS-DOCX],
[MS-XLSX] and [MS-PPTX], without connections, queries, external links, controls, add-ins and menus.
"""
_RELATIONS = """
officedocument core-properties extended-properties custom-properties thumbnail origin signature certificate
classificationlabels customxml customxmlprops theme themeoverride image hyperlink font printersettings styles
styleswitheffects settings websettings fonttable numbering footnotes endnotes header footer glossarydocument
comments commentsextended commentsids commentsextensible people bibliography chart chartex chartstyle
chartcolorstyle chartusershapes drawing vmldrawing ink diagramdata diagramlayout diagramquickstyle
diagramcolors diagramdrawing legacydiagramtext slide slidelayout slidemaster notesslide notesmaster
handoutmaster presprops viewprops tablestyles tags commentauthors authors revisioninfo changesinfo audio video
media worksheet chartsheet sharedstrings calcchain table tablesinglecells pivottable pivotcachedefinition
pivotcacherecords sheetmetadata threadedcomment person slicer slicercache timeline timelinecache
customproperty revisionheaders revisionlog usernames xmlmaps richvaluerel rdrichvalue
rdrichvaluestructure rdrichvaluetypes rdarray rdsupportingpropertybag rdsupportingpropertybagstructure richstyles rdrichvaluewebimage
featurepropertybag namedsheetview
"""
"""The kinds of relationships that a document may have, of the same sources. `oleobj` of `oletools` warns of all external ones
that are loaded; here only hyperlinks may be external.
"""
_FIELDS = re.compile(
    r"(?i)\s*(?:DATABASE|DDE|DDEAUTO|EMBED|IMPORT|INCLUDE|INCLUDEPICTURE|INCLUDETEXT|LINK|PRINT|RD)(?![A-Z0-9_])"
)
"""The fields of ECMA-376, part 1, section 17.16.5, and of earlier versions of Word, that start a program or load a file, as
`msodde` of `oletools` names them.
"""
_PROGRAM_FIELD = re.compile(r"(?i)\bDDE(?:AUTO)?\b")
_ELEMENTS = {
    "ddelink": "has a link that starts a program",
    "olelink": "has a link that loads an object",
    "altchunk": "takes in another document",
    "mailmerge": "reads the data of another file",
    "customui": "has menus that start macros",
    "formcontrolpr": "has a control: save it without controls",
    "fmlamacro": "has a control that starts a macro",
    "datamashup": "has queries that load data: save it with their results alone",
}
"""Elements that are refused: those of ECMA-376, part 1, sections 17.14, 17.17.2.1 and 18.14, and part 4, section 19.4, and of
[MS-CUSTOMUI], [MS-XLSX] and [MS-QDEFF] (Power Query).
"""
_VML_OBJECTS = frozenset({"note", "group", "linea", "rect", "recta", "shape"})
"""The objects of VML, of ECMA-376, part 4, section 19.4, that are drawings; the others are controls and media."""
_AUTOMATIC_NAME = re.compile(r"(?i)(?:_xlnm\.)?auto_(?:open|close|activate|deactivate)")
"""The beginning of a defined name, of ECMA-376, part 1, section 18.2.5, and of Excel 4, whose macro runs by itself."""
_FORMULAS = frozenset({"f", "formula", "formula1", "formula2", "definedname"})
_QUOTED = re.compile(r"\"[^\"]*\"|'[^']*'")
_LOADING_FORMULA = re.compile(
    r"(?i)\||(?<![\w.])(?:_xlfn\.)?(?:CALL|DDE|EXEC|IMAGE|REGISTER|REGISTER\.ID|RTD|SQL\.REQUEST|WEBSERVICE)\s*\("
)
"""A reference `program|topic!item`, which is DDE, or a function that starts a program or loads something."""
_ESCAPED = re.compile(r"_x([0-9A-Fa-f]{4})_")
"""A character in a formula, as of ECMA-376, part 1, section 22.9.2.19."""
_BEFORE_XML = b"\xef\xbb\xbf\xff\xfe\0 \t\r\n"
_PROGRAM_ACTION = re.compile(r"(?i)ppaction://(?:program|macro|ole)")
_VML_SOURCES = frozenset({"imagedata", "fill", "stroke"})
_NUMBER = re.compile(r"[0-9]{1,6}")
_ARCHIVES = (b"PK\x03\x04", b"PK\x05\x06", b"Rar!\x1a\x07", b"7z\xbc\xaf\x27\x1c", b"\x1f\x8b\x08")
_COMPOUND = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_ARCHIVE_ERRORS = (
    *(zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError),
    *(ArithmeticError, LookupError, MemoryError, OSError, ValueError),
)
"""The exceptions that `zipfile` raises for a damaged archive."""


class ArchiveRefused(Exception):
    """The file may not be attached; the message completes a sentence that begins with its name."""


def inspect(data: bytes) -> dict[str, str]:
    """Return the `mime` and the `text` of an archive, or the `problem` for which it may not be attached.

    Both texts are empty if the archive is not a Word, PowerPoint or Excel document.
    """
    try:
        return _read_document(_unpack_all(data))
    except ArchiveRefused as refused:
        return {"problem": str(refused)}
    except (expat.ExpatError, LookupError, ValueError) as error:
        # `expat` raises the latter two if a part has an encoding that it cannot read.
        return {"problem": f"cannot be read as an Office document: {error}"}


def _unpack_all(data: bytes) -> dict[str, bytes]:
    """Check the archive and its entries, and return the bytes of each entry by name.

    Raises:
        ArchiveRefused: the archive is damaged, has data before it or a comment, or an entry is not allowed.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if not data.startswith(b"PK") or archive.comment:
                raise ArchiveRefused("has data before or after the archive")
            _check_entries(archive.infolist(), len(data))
            return {entry.filename: _unpack(archive, entry) for entry in archive.infolist()}
    except _ARCHIVE_ERRORS as error:
        raise ArchiveRefused(f"cannot be read as an archive: {error}") from error


def _check_entries(entries: list[zipfile.ZipInfo], size: int) -> None:
    """Check the number of entries, their unpacked size, their compression and their names, then each entry.

    Raises:
        ArchiveRefused: a limit is exceeded, two names differ at most in case, or an entry is refused.
    """
    if len(entries) > ENTRIES:
        raise ArchiveRefused(f"has {len(entries):,} entries: an archive may have {ENTRIES:,}")
    unpacked = sum(entry.file_size for entry in entries)
    if unpacked > UNPACKED_BYTES:
        raise ArchiveRefused(
            f"has {unpacked:,} bytes unpacked: an archive may have {UNPACKED_BYTES:,}"
        )
    if unpacked > max(size, 1) * RATIO and unpacked > SMALL_BYTES:
        raise ArchiveRefused(f"is compressed more than {RATIO} times")
    names = [entry.filename for entry in entries]
    if len({name.lower() for name in names}) < len(names):
        raise ArchiveRefused("has two entries with the same name")
    for entry in entries:
        _check_entry(entry)


def _check_entry(entry: zipfile.ZipInfo) -> None:
    """Check the header of an entry.

    Raises:
        ArchiveRefused: the entry is encrypted, would be unpacked to another folder, is compressed too much, or has a
            name of active content.
    """
    name = entry.filename.replace("\\", "/")
    if entry.flag_bits & 0x1:
        raise ArchiveRefused("is encrypted: save it without a password")
    if name.startswith("/") or ".." in name.split("/") or "\0" in name or ":" in name:
        raise ArchiveRefused("has an entry that would be unpacked to another folder")
    if entry.file_size > max(entry.compress_size, 1) * RATIO and entry.file_size > SMALL_BYTES:
        raise ArchiveRefused(f"has an entry that is compressed more than {RATIO} times")
    if _ACTIVE_PARTS.search(name):
        raise ArchiveRefused("has macros or active content: save it without them")


def _unpack(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    """Return the bytes of an entry.

    Raises:
        ArchiveRefused: the entry is larger than its header says, or has an archive or an embedded object.
    """
    pieces: list[bytes] = []
    size = 0
    with archive.open(entry) as file:
        while piece := file.read(PIECE_BYTES):
            size += len(piece)
            if size > entry.file_size:
                raise ArchiveRefused("has an entry that is larger than it says")
            pieces.append(piece)
    data = b"".join(pieces)
    if data.startswith(_ARCHIVES):
        raise ArchiveRefused("has an archive in it")
    if data.startswith(_COMPOUND):
        raise ArchiveRefused("has an embedded object in it: save it without the object")
    return data


def _read_document(parts: dict[str, bytes]) -> dict[str, str]:
    """Return the `mime` and the `text` of an Office document, at most `TEXT_CHARACTERS`; for other archives both are empty.

    Raises:
        ArchiveRefused: the document has active content or an unknown part, or is of more than one kind.
        ExpatError: a part is not well-formed XML.
    """
    kinds = [kind for part, kind in _MAIN_PARTS.items() if part in parts]
    if CONTENT_TYPES not in parts or not kinds:
        return {"mime": "", "text": ""}
    if len(kinds) > 1:
        raise ArchiveRefused("is more than one kind of document at once")
    for name in parts:
        if not _PARTS.fullmatch(name):
            raise ArchiveRefused(
                f"has the part {ascii(name)[:100]}, which may be active content: save it without it"
            )
    for name, data in parts.items():
        # A part of any name may be XML, because its type is written elsewhere.
        if name.endswith((".xml", ".rels", ".vml")) or data.lstrip(_BEFORE_XML).startswith(b"<"):
            _PartCheck().check(data)
    texts: list[str] = []
    size = 0
    for name in sorted(parts, key=_part_order):
        if _TEXT_PARTS.fullmatch(name) and size < TEXT_CHARACTERS:
            texts.append(_read_text(parts[name]))
            size += len(texts[-1])
    return {"mime": kinds[0], "text": "\n\n".join(filter(None, texts))[:TEXT_CHARACTERS]}


class _PartCheck:
    """Searches the XML of a part for macros, fields that start programs, and relationships that load external content."""

    def __init__(self) -> None:
        self.parser = expat.ParserCreate()
        self.parser.StartDoctypeDeclHandler = self._refuse_doctype
        self.parser.StartElementHandler = self._begin
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._add
        self._fields: list[str] = [""]
        """The instructions of the fields that are open, from the outermost; the first text is that outside of fields."""
        self._instructions: list[str] = []
        self._formula: list[str] = []
        self._name = ""

    def check(self, data: bytes) -> None:
        """Search the XML of a part.

        Raises:
            ArchiveRefused: the part has active content or loads external content.
            ExpatError: the part is not well-formed XML.
        """
        self.parser.Parse(data, True)
        # An instruction may be split into several runs, so its name is searched in all of them together.
        for instruction in self._fields:
            self._check_field(instruction)
        if _PROGRAM_FIELD.search("".join(self._instructions)):
            raise ArchiveRefused("has a field that starts a program")

    def _check_field(self, instruction: str) -> None:
        if _FIELDS.match(instruction):
            raise ArchiveRefused("has a field that starts a program or loads a file")

    def _refuse_doctype(self, *declaration: object) -> None:
        del declaration
        raise ArchiveRefused("declares entities, which Office programs never do")

    def _begin(self, tag: str, attributes: dict[str, str]) -> None:
        """Check the start of an element and its attributes; begin to collect a field instruction or a formula.

        Raises:
            ArchiveRefused: the element has macros, starts a program, or loads external content.
        """
        name = tag.rpartition(":")[2].lower()
        values = defaultdict[str, str](str)
        values |= {key.rpartition(":")[2].lower(): value for key, value in attributes.items()}
        if any(macro in value.lower() for value in values.values() for macro in _MACROS):
            raise ArchiveRefused("has macros: save it without them")
        if name in _ELEMENTS:
            raise ArchiveRefused(_ELEMENTS[name])
        if _PROGRAM_ACTION.match(values["action"]):
            raise ArchiveRefused("has a link that starts a program")
        if values["macro"].strip() or (
            name == "definedname" and _AUTOMATIC_NAME.match(values["name"])
        ):
            raise ArchiveRefused("names a macro to start: save it without macros")
        if "objecttype" in values and values["objecttype"].lower() not in _VML_OBJECTS:
            raise ArchiveRefused(_ELEMENTS["formcontrolpr"])
        if name in _VML_SOURCES and {"src", "href", "althref"} & values.keys():
            raise ArchiveRefused("loads external content when it is opened")
        if name == "relationship":
            _check_relation(values)
        if "instr" in values:
            self._instructions.append(f" {values['instr']} ")
            self._check_field(values["instr"])
        if name == "fldchar":
            self._change_field(values["fldchartype"])
        self._name = name
        self._formula.clear()

    def _change_field(self, kind: str) -> None:
        """Begin a field, or check the instruction of the innermost field; `kind` is "begin", "separate" or "end".

        Raises:
            ArchiveRefused: the field starts a program or loads a file, or its kind is the result of another field.
        """
        if kind == "begin":
            if len(self._fields) > 1 and not self._fields[-1].strip():
                raise ArchiveRefused("has a field whose kind is the result of another field")
            self._fields.append("")
        elif len(self._fields) > 1:
            self._check_field(self._fields[-1])
            if kind == "end":
                self._fields.pop()

    def _end(self, tag: str) -> None:
        """Check the formula that ends here; raise ArchiveRefused if it starts a program or loads something."""
        del tag
        if self._name in _FORMULAS:
            formula = _ESCAPED.sub(lambda code: chr(int(code[1], 16)), "".join(self._formula))
            formula = _QUOTED.sub("", formula)
            if _LOADING_FORMULA.search(formula):
                raise ArchiveRefused("has a formula that starts a program or loads something")
        self._name = ""

    def _add(self, text: str) -> None:
        if self._name in ("instrtext", "delinstrtext"):
            self._instructions.append(text)
            self._fields[-1] += text
        elif self._name in _FORMULAS:
            self._formula.append(text)


def _check_relation(values: defaultdict[str, str]) -> None:
    """Check a relationship of a document, with the attributes `values`, by its kind: the last part of its type.

    Raises:
        ArchiveRefused: it is external and not a hyperlink, or not of a known kind.
    """
    kind = values["type"].rpartition("/")[2].lower()
    if values["targetmode"].strip().lower() == "external":
        if kind != "hyperlink":
            raise ArchiveRefused("loads external content when it is opened")
    elif kind not in _RELATIONS.split():
        raise ArchiveRefused(
            f"has a relation of the kind {ascii(kind)[:100]}, which may be active content"
        )


def _part_order(name: str) -> tuple[str, int]:
    stem = name.removesuffix(".xml")
    number = _NUMBER.search(stem, len(stem.rstrip("0123456789")))
    return stem.rstrip("0123456789"), int(number[0]) if number else 0


def _read_text(part: bytes) -> str:
    """Return the text of a part, with a line for each paragraph and row, and a tab after each cell."""
    texts: list[str] = []
    depth = 0

    def begin(tag: str, _: dict[str, str]) -> None:
        nonlocal depth
        depth += tag.rpartition(":")[2] in _TEXTS

    def end(tag: str) -> None:
        """Append a line break after a paragraph, a row or a string, and a tab after a cell or a tab element."""
        nonlocal depth
        name = tag.rpartition(":")[2]
        depth -= name in _TEXTS
        if name in _BREAKS:
            texts.append("\n")
        elif name in _TABS:
            texts.append("\t")

    def add(text: str) -> None:
        if depth:
            texts.append(text)

    parser = expat.ParserCreate()
    parser.StartElementHandler = begin
    parser.EndElementHandler = end
    parser.CharacterDataHandler = add
    parser.Parse(part, True)
    return "".join(texts).strip()


def main() -> None:
    """Inspect the file on stdin. The command-line arguments are the limits of CPU seconds and bytes of memory."""
    cpu_seconds, memory_bytes = map(int, sys.argv[1:])
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
    sys.stdout.write(json.dumps(inspect(sys.stdin.buffer.read())))


if __name__ == "__main__":
    main()
