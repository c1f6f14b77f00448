"""Keys of all vendors, wherever a text may hold them: no part of one is in the redacted text."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Callable
from functools import partial
from random import Random
from string import ascii_letters, digits

from loopline.redaction.detectors import SECRET, LibraryRedactor
from loopline.redaction.redaction import RedactedStream, redact_json, redact_text
from tests.bench.attacks.programs.trial import Draw, Trial
from tests.support.vendor_keys import VENDOR_PREFIXES

MUST_HOLD = "no eight characters of a key are in the redacted text"
RANDOM_CHARACTERS = 60
PIECE = 8
CONTEXTS: dict[str, str] = {
    "prose": "My key is {}, keep it.",
    "a sentence's end": "Use {}.",
    "a shell": "export KEY={}\n",
    "a shell with quotes": "KEY='{}' run",
    "YAML": "key: {}\nother: 1\n",
    "a header": "Authorization: Bearer {}\r\n",
    "another header": "x-api-key:{}",
    "a query": "https://a.example/v1?key={}&alt=sse",
    "a password in a URL": "https://user:{}@a.example/x.git",
    "Markdown": "Take `{}` or **{}**.",
    "a table": "| key |{}| x |",
    "Python": 'client = Client(api_key="{}")',
    "JSON": '{{"key":"{}"}}',
    "CSV": "ann,{},3\n",
    "brackets": "({})[{}]<{}>",
    "a line of its own": "first\n{}\nlast",
    "German quotes": "„{}“",
    "no space before": "Schlüssel\uff1a{}",
    "a tab": "key\t{}\tend",
    "a path": "/run/secrets/{}",
}


def is_there(key: str, redacted: str) -> bool:
    """Whether some characters of the random part of the key are in a text."""
    secret = key[-RANDOM_CHARACTERS:]
    return any(
        secret[at : at + PIECE] in redacted for at in range(0, RANDOM_CHARACTERS - PIECE, PIECE)
    )


def in_pieces(redactor: LibraryRedactor, random: Random, text: str) -> str:
    stream, released = RedactedStream(redactor), ""
    while text:
        size = random.randint(1, 9)
        released += stream.feed(text[:size])
        text = text[size:]
    return released + stream.close()


def in_json(redactor: LibraryRedactor, text: str) -> str:
    """Redact a value with the text in it, deep, as a key, and as JSON in a string."""
    value = redact_json(redactor, {"a": [{"b": text}], text: 1, "c": json.dumps({"d": text})})
    return json.dumps(value, ensure_ascii=False)


def escaped(redactor: LibraryRedactor, text: str) -> str:
    """Redact JSON whose characters are all escaped, and read what is left."""
    written = "".join(f"\\u{ord(character):04x}" for character in text if character < "\uffff")
    return redact_text(redactor, f'{{"text": "{written}"}}').encode().decode("unicode_escape")


async def attack(draw: Draw) -> AsyncIterator[Trial]:
    """Redact keys of each vendor in each context, whole, in pieces, in JSON and escaped."""
    redactor = LibraryRedactor([SECRET])
    ways: dict[str, Callable[[str], str]] = {
        "whole": partial(redact_text, redactor),
        "in pieces": partial(in_pieces, redactor, draw.random),
        "in JSON": partial(in_json, redactor),
        "escaped": partial(escaped, redactor),
    }
    prefixes = {prefix: vendor for vendor, some in VENDOR_PREFIXES.items() for prefix in some}
    for prefix, vendor in draw.programs(prefixes):
        for context, form in draw.programs(CONTEXTS):
            key = prefix + "".join(draw.random.choices(ascii_letters + digits, k=RANDOM_CHARACTERS))
            text = form.replace("{}", key).replace("{{", "{").replace("}}", "}")
            for way, redact in draw.programs(ways):
                redacted = redact(text)
                passed = redacted if is_there(key, redacted) else ""
                yield Trial(f"{vendor} {prefix}… in {context}, {way}", MUST_HOLD, passed[:200])
    for name, text in draw.programs(others(draw.random)):
        redacted = redact_text(redactor, text)
        yield Trial(name, MUST_HOLD, redacted[:200] if is_there(text, redacted) else "")


def others(random: Random) -> dict[str, str]:
    """Return secrets of other forms; the last 60 characters of each are random."""
    rest = "".join(random.choices(ascii_letters + digits, k=RANDOM_CHARACTERS))
    head = urlsafe_b64encode(b'{"alg":"RS256","typ":"JWT"}').decode().rstrip("=")
    body = urlsafe_b64encode(b'{"sub":"ann","exp":1}').decode().rstrip("=")
    return {
        "a JSON Web Token": f"{head}.{body}.{rest}",
        "a key in PEM": f"-----BEGIN PRIVATE KEY-----\n{rest}",
        "a key of OpenSSH": f"-----BEGIN OPENSSH PRIVATE KEY-----\n{rest}",
        "a key of PGP": f"-----BEGIN PGP PRIVATE KEY BLOCK-----\n\n{rest}",
        "a webhook of Slack": f"https://hooks.slack.com/services/T0000/B0000/{rest}",
        "Stripe": f"sk_live_{rest}",
    }
