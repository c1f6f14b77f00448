"""An embedder for any model of sentence-transformers, by name or folder."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loopline.search.embedder import EmbeddingError, Vector
from loopline.search.local_embedder import weights_digest

BATCH = 64
PADDED_TOGETHER = 8
"""The texts that are computed together. They are padded to the longest, so a batch is sorted by length and split."""


class TorchEmbedder:
    """A model that PyTorch computes, in bfloat16 if the processor supports it, otherwise in float32."""

    batch: int = BATCH

    def __init__(self, name: str) -> None:
        """Load the model of a name or a folder. This takes seconds, and downloads a named model that is not cached.

        A name may end in `@` and a revision. Without a revision, the publisher can change the model of that name.

        Raises:
            EmbeddingError: the model does not exist or cannot be loaded.
        """
        library: Any = import_module("sentence_transformers")
        precision = "bfloat16" if _has_bfloat16() else "float32"
        folder = Path(name)
        model = name
        revision = ""
        if not folder.is_dir():
            model, _, revision = name.partition("@")
        try:
            self._model: Any = library.SentenceTransformer(
                model, revision=revision or None, model_kwargs={"dtype": precision}
            )
        except (OSError, ValueError) as error:
            raise EmbeddingError(f"sentence-transformers cannot load {name!r}: {error}") from error
        weights = folder / "model.safetensors"
        published = weights_digest(weights) if weights.is_file() else f"{model}/{revision}"
        prefixes = dict(self._model.prompts)
        self.key: str = f"sentence-transformers/{published}/{precision}/{prefixes!r}"
        size: int | None = self._model.get_embedding_dimension()
        self.dimensions: int = size or len(self.embed_query("")) // 4

    def embed_passages(self, texts: Sequence[str]) -> list[Vector]:
        """Return the vector of each text, in the same order."""
        rows = self._model.encode_document(
            list(texts), batch_size=PADDED_TOGETHER, normalize_embeddings=True
        )
        return [_normalize(row) for row in rows]

    def embed_query(self, text: str) -> Vector:
        """Return the vector of a query."""
        return _normalize(self._model.encode_query(text, normalize_embeddings=True))

    def close(self) -> None:
        """Do nothing: the model is freed with this object."""


def _normalize(row: NDArray[np.float32]) -> Vector:
    """Normalize a vector again in float32; the length of one from bfloat16 is wrong by a few thousandths."""
    exact = row.astype("<f4")
    unit: NDArray[np.float32] = (exact / np.linalg.norm(exact)).astype("<f4")
    return unit.tobytes()


def _has_bfloat16() -> bool:
    """Return True if the processor has instructions for bfloat16; emulated, it is slower than float32."""
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return "amx_bf16" in flags or "avx512_bf16" in flags
