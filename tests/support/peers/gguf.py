"""A language model of 116 kB in llama.cpp's own form, with random weights.

Its tokens are the bytes. Whatever it reads, it likes to write letters, to call a tool and to end.
Source of the form: ggml-org/ggml, docs/gguf.md, version 3, read on 2026-11-20.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from random import Random
from typing import TypeAlias

Value: TypeAlias = bool | int | float | str | Sequence[int] | Sequence[float] | Sequence[str]

WIDTH, HEADS, INNER = 32, 2, 64
ALIGNMENT = 32
CALL = "<tool_call>"
"""Where a call begins: one token, which the model may well choose."""
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
"""How such a vocabulary writes a space."""
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
END = "</s>"
TOKENS = ["<unk>", "<s>", END, *BYTES, SPACE, CALL]
NEVER = -3.0
PREFERRED = {
    **dict.fromkeys(BYTES[ord("!") : ord("~")], 0.0),
    **dict.fromkeys(BYTES[ord("a") : ord("z")], 0.3),
    BYTES[ord('"')]: 0.5,  # what is quoted is short
    SPACE: 0.3,
    END: 0.5,
    CALL: 0.7,
}
"""How readily it writes a token; one that is not here it does not write of itself."""
_UNKNOWN, _CONTROL, _BYTE, _NORMAL, _OWN = 2, 3, 6, 1, 4
_KINDS = [_UNKNOWN, _CONTROL, _CONTROL, *[_BYTE] * 256, _NORMAL, _OWN]

TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}"
    "{% for message in messages %}<|{{ message.role }}|>\n{{ message.content or '' }}"
    "{% for call in message.tool_calls or [] %}<tool_call>"
    '{"name": {{ call.function.name | tojson }}, "arguments": {{ call.function.arguments | tojson }}}'
    "</tool_call>{% endfor %}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


def write_model(path: Path, *, ends: bool = True) -> None:
    """Write it; unless it `ends`, it talks until it is stopped."""
    heads, data = list[bytes](), b""
    for name, shape, weights in _tensors(Random(1), ends=ends):
        dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        heads.append(_text(name) + dimensions + struct.pack("<IQ", 0, len(data)))
        data += _padded(weights.tobytes())
    facts = b"".join(_text(name) + _value(value) for name, value in _facts().items())
    head = b"GGUF" + struct.pack("<IQQ", 3, len(heads), len(_facts())) + facts + b"".join(heads)
    path.write_bytes(_padded(head) + data)


def _facts() -> Mapping[str, Value]:
    return {
        "general.architecture": "llama",
        "llama.context_length": 2**20,
        "llama.embedding_length": WIDTH,
        "llama.block_count": 1,
        "llama.feed_forward_length": INNER,
        "llama.attention.head_count": HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": WIDTH // HEADS,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.scores": [0.0] * len(TOKENS),
        "tokenizer.ggml.token_type": _KINDS,
        "tokenizer.ggml.bos_token_id": TOKENS.index("<s>"),
        "tokenizer.ggml.eos_token_id": TOKENS.index(END),
        "tokenizer.ggml.unknown_token_id": TOKENS.index("<unk>"),
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.chat_template": TEMPLATE,
    }


Tensor: TypeAlias = tuple[str, tuple[int, ...], "array[float]"]


def _tensors(random: Random, *, ends: bool) -> list[Tensor]:
    """The first of all dimensions is the same for every token: what it weighs is a preference."""
    liked = PREFERRED if ends else {**PREFERRED, END: NEVER}
    sizes = {
        **dict.fromkeys(["attn_q", "attn_k", "attn_v", "attn_output"], (WIDTH, WIDTH)),
        **dict.fromkeys(["ffn_gate", "ffn_up"], (WIDTH, INNER)),
        "ffn_down": (INNER, WIDTH),
    }
    return [
        _rows("token_embd.weight", [3.0] * len(TOKENS), random),
        _rows("output.weight", [liked.get(token, NEVER) for token in TOKENS], random),
        *(_ones(name) for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm")),
        *(
            (f"blk.0.{name}.weight", shape, _noise(random, prod(shape), 0.05))
            for name, shape in sizes.items()
        ),
    ]


def _rows(name: str, first: Sequence[float], random: Random) -> Tensor:
    """One row a token, whose first number is given."""
    numbers = array("f")
    for item in first:
        numbers.append(item)
        numbers.extend(_noise(random, WIDTH - 1, 0.3))
    return name, (WIDTH, len(first)), numbers


def _ones(name: str) -> Tensor:
    return f"{name}.weight", (WIDTH,), array("f", [1.0] * WIDTH)


def _noise(random: Random, count: int, spread: float) -> array[float]:
    return array("f", (random.gauss(0.0, spread) for _ in range(count)))


def _value(value: Value) -> bytes:
    """A value behind its type: 4 a count, 5 a number, 6 a fraction, 7 a truth, 8 a text, 9 a list."""
    match value:
        case bool():
            return struct.pack("<I?", 7, value)
        case int():
            return struct.pack("<II", 4, value)
        case float():
            return struct.pack("<If", 6, value)
        case str():
            return struct.pack("<I", 8) + _text(value)
        case _:
            return struct.pack("<I", 9) + _items(value)


def _items(values: Sequence[int] | Sequence[float] | Sequence[str]) -> bytes:
    """The type of the items, how many there are, and they themselves."""
    texts = [_text(value) for value in values if isinstance(value, str)]
    if texts:
        return struct.pack("<IQ", 8, len(texts)) + b"".join(texts)
    whole = all(isinstance(value, int) for value in values)
    kind, letter = (5, "i") if whole else (6, "f")
    return struct.pack(f"<IQ{len(values)}{letter}", kind, len(values), *values)


def _text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % ALIGNMENT)
