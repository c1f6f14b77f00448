"""Text that others wrote, shown so that nothing in it reads as a line of the prompt's own frame."""

from __future__ import annotations

import re

HEADS = (
    "ATTACHED",
    "BLOCKS",
    "DRAFT",
    "EARLIER PLANS",
    "MEMORY NOTES",
    "NEW FEEDBACK",
    "NOTES",
    "NOTICE",
    "OPEN PLANS",
    "REFERRED TO LATER",
    "RESULT",
    "SOURCES CITED",
    "SOURCES NOT SHOWN ABOVE",
    "SUMMARY",
    "THE USER ATTACHED",
    "THE USER SAID",
    "TIME",
    "TURN",
    "USER INTERRUPT",
    "WAITING",
)
"""What the lines begin with, in brackets, by which a prompt says who speaks and what follows."""

_REFS = "ar|tc|fi|so|su|sk|ks|cv|ef|artifact"
_FRAME = re.compile(
    rf"((?:^|(?<=[\r\v\f\x85\u2028\u2029]))[ \t]*+)(?=\[(?:(?:{'|'.join(HEADS)})\b|(?:{_REFS}):))",
    re.MULTILINE | re.IGNORECASE,
)


def framed(text: str) -> str:
    """Return the text with a backslash before each line that begins like one of the frame."""
    return _FRAME.sub(r"\1\\", text)
