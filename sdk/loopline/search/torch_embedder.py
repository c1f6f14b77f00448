"""Any model of sentence-transformers, by its name or folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray

from loopline.search.embedder import EmbeddingError, Vector
from loopline.search.local_embedder import weights_digest

BATCH = 64
PADDED_TOGETHER = 8
"""The texts that are computed at once. They are padded to the longest, so a batch is sorted by length and cut."""


class _Model(Protocol):
    """What is used of `SentenceTransformer`, which has incomplete types."""

    prompts: Mapping[str, str]

    def encode_query(self, text: str, *, normalize_embeddings: bool) -> NDArray[np.float32]: ...

    def encode_document(
        self, texts: Sequence[str], *, batch_size: int, normalize_embeddings: bool
    ) -> NDArray[np.float32]: ...

    def get_embedding_dimension(self) -> int | None: ...


class _Models(Protocol):
    def __call__(
        self, name: str, *, revision: str | None, model_kwargs: Mapping[str, object]
    ) -> _Model: ...


class _SentenceTransformers(Protocol):
    SentenceTransformer: _Models
    __version__: str


class TorchEmbedder:
    """A model that PyTorch computes: in bfloat16 where the processor has it, else in float32."""

    def __init__(self, name: str) -> None:
        """Load the model; this takes seconds, and fetches one that is named and not there.

        A name may end in `@` and a revision. Without one, whoever publishes the model can change it under its name.

        Raises:
            EmbeddingError: there is no such model.
        """
        library = cast(_SentenceTransformers, import_module("sentence_transformers"))
        precision = "bfloat16" if _has_bfloat16() else "float32"
        folder = Path(name)
        model, _, revision = (name, "", "") if folder.is_dir() else name.partition("@")
        try:
            self._model = library.SentenceTransformer(
                model, revision=revision or None, model_kwargs={"dtype": precision}
            )
        except (OSError, ValueError) as error:
            raise EmbeddingError(f"sentence-transformers cannot load {name!r}: {error}") from error
        weights = folder / "model.safetensors"
        published = weights_digest(weights) if weights.is_file() else f"{model}/{revision}"
        prefixes = dict(self._model.prompts)
        self._key = f"sentence-transformers/{published}/{precision}/{prefixes!r}"

    @property
    def key(self) -> str:
        """The digest of a folder's weights, or a model's name and revision; the precision and the prefixes."""
        return self._key

    @property
    def dimensions(self) -> int:
        """The number of coordinates of a vector."""
        return self._model.get_embedding_dimension() or len(self.embed_query("")) // 4

    @property
    def batch(self) -> int:
        """How many texts are best embedded at once."""
        return BATCH

    def embed_passages(self, texts: Sequence[str]) -> list[Vector]:
        """Return the vector of each text, in their order."""
        rows = self._model.encode_document(
            list(texts), batch_size=PADDED_TOGETHER, normalize_embeddings=True
        )
        return [_unit(row) for row in rows]

    def embed_query(self, text: str) -> Vector:
        """Return the vector of a question."""
        return _unit(self._model.encode_query(text, normalize_embeddings=True))

    def close(self) -> None:
        """Release nothing: the model is memory."""


def _unit(row: NDArray[np.float32]) -> Vector:
    """Return a vector of length 1: one that was normalised in bfloat16 is off by a few thousandths."""
    exact = row.astype("<f4")
    unit: NDArray[np.float32] = (exact / np.linalg.norm(exact)).astype("<f4")
    return unit.tobytes()


def _has_bfloat16() -> bool:
    """Return whether the processor computes with 16-bit floats itself; emulated they are slower than 32-bit ones."""
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return "amx_bf16" in flags or "avx512_bf16" in flags
