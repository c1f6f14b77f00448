"""A model in a local folder, without PyTorch: tokenizers and NumPy, or onnxruntime where it has a `model.onnx`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import file_digest
from importlib import import_module
from pathlib import Path
from typing import Protocol, TypedDict, cast

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from loopline.search.bert import Bert, BertShape, Matrix
from loopline.search.embedder import EmbeddingError, Vector

BATCH = 8
"""The texts of a matrix; more are not quicker, and two cores take about a second for as many."""
DEFAULT_TOKENS = 256
_ONNX = ("model.onnx", "onnx/model.onnx")


class _Encoder(Protocol):
    @property
    def dimensions(self) -> int: ...

    def encode(self, texts: Sequence[Sequence[int]]) -> Matrix: ...


class _Config(TypedDict, total=False):
    model_type: str
    hidden_act: str
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    layer_norm_eps: float


class _Pooling(TypedDict, total=False):
    pooling_mode_cls_token: bool
    pooling_mode_mean_tokens: bool


class _Sentences(TypedDict, total=False):
    max_seq_length: int
    prompts: dict[str, str]


@dataclass(frozen=True, slots=True)
class Prefixes:
    """What a model was trained to see before a question and before a passage."""

    query: str = ""
    passage: str = ""


class LocalEmbedder:
    """A sentence-transformers folder: `config.json`, `tokenizer.json` and the weights."""

    def __init__(self, folder: Path) -> None:
        """Load the weights; this takes a second for each 100 MB.

        Raises:
            EmbeddingError: the folder is none of a model that can be computed here; the message says what it lacks.
        """
        if not folder.is_dir():
            raise EmbeddingError(f"{folder} is no folder with a model")
        self._prefixes = read_prefixes(folder)
        self._encoder, weights = _encoder(folder)
        self._tokenizer = _tokenizer(folder)
        self._revision = weights_digest(weights)
        self._name = folder.name

    @property
    def key(self) -> str:
        """The digest of the weights, the precision and the prefixes."""
        prefixes = f"{self._prefixes.query!r}/{self._prefixes.passage!r}"
        return f"local/{self._name}/{self._revision}/float32/{prefixes}"

    @property
    def dimensions(self) -> int:
        """The number of coordinates of a vector."""
        return self._encoder.dimensions

    @property
    def batch(self) -> int:
        """How many texts are best embedded at once."""
        return BATCH

    def embed_passages(self, texts: Sequence[str]) -> list[Vector]:
        """Return the vector of each text, in their order."""
        return self._embed([self._prefixes.passage + text for text in texts])

    def embed_query(self, text: str) -> Vector:
        """Return the vector of a question."""
        return self._embed([self._prefixes.query + text])[0]

    def close(self) -> None:
        """Release nothing: the model is memory."""

    def _embed(self, texts: Sequence[str]) -> list[Vector]:
        encodings = self._tokenizer.encode_batch([_encodable(text) for text in texts])
        tokens = [encoding.ids for encoding in encodings]
        vectors: list[Vector] = []
        for start in range(0, len(tokens), BATCH):
            rows = self._encoder.encode(tokens[start : start + BATCH])
            vectors += [row.astype("<f4").tobytes() for row in rows]
        return vectors


class _Encoding(Protocol):
    @property
    def ids(self) -> Sequence[int]: ...


class _Tokenizer(Protocol):
    """What is used of a tokenizer, whose own types are incomplete."""

    def encode_batch(self, texts: list[str], /) -> Sequence[_Encoding]: ...

    def enable_truncation(self, max_length: int, /) -> None: ...

    def no_padding(self) -> None: ...


class _SafeTensors(Protocol):
    """What is used of `safetensors.numpy`, whose own types are incomplete."""

    def load_file(self, path: Path, /) -> dict[str, Matrix]: ...


class _OnnxPort(Protocol):
    """An input or output of a network."""

    name: str
    shape: Sequence[int | str]


class _OnnxSession(Protocol):
    def get_inputs(self) -> Sequence[_OnnxPort]: ...

    def get_outputs(self) -> Sequence[_OnnxPort]: ...

    def run(self, outputs: None, inputs: Mapping[str, NDArray[np.int64]]) -> Sequence[Matrix]: ...


class _OnnxOptions(Protocol):
    def add_session_config_entry(self, key: str, value: str, /) -> None: ...


class _OnnxSessions(Protocol):
    def __call__(
        self, path: str, options: _OnnxOptions, /, *, providers: Sequence[str]
    ) -> _OnnxSession: ...


class _OnnxRuntime(Protocol):
    """What is used of `onnxruntime`, which has no types."""

    InferenceSession: _OnnxSessions
    SessionOptions: Callable[[], _OnnxOptions]


class _OnnxEncoder:
    """A `model.onnx` that takes token ids and an attention mask and gives the last hidden states."""

    def __init__(self, path: Path, *, takes_first_token: bool) -> None:
        try:
            runtime = cast(_OnnxRuntime, import_module("onnxruntime"))
        except ImportError as error:
            raise EmbeddingError(
                f"{path} needs onnxruntime: pip install onnxruntime, or remove the file to use NumPy"
            ) from error
        options = runtime.SessionOptions()
        # Threads that spin while they wait halve the rate when other programs need the cores.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = runtime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
        self._inputs = {entry.name for entry in self._session.get_inputs()}
        self._takes_first_token = takes_first_token
        self.dimensions: int = int(self._session.get_outputs()[0].shape[-1])

    def encode(self, texts: Sequence[Sequence[int]]) -> Matrix:
        """Return a row of length 1 for each text."""
        longest = max(map(len, texts))
        ids = np.zeros((len(texts), longest), dtype=np.int64)
        mask = np.zeros_like(ids)
        for row, text in enumerate(texts):
            ids[row, : len(text)] = text
            mask[row, : len(text)] = 1
        inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        outputs = self._session.run(
            None, {name: value for name, value in inputs.items() if name in self._inputs}
        )
        states = outputs[0]
        if self._takes_first_token:
            rows: Matrix = states[:, 0]
        else:
            weights = mask[:, :, None].astype(np.float32)
            rows = (states * weights).sum(axis=1) / weights.sum(axis=1)
        unit: Matrix = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        return unit


def weights_digest(weights: Path) -> str:
    """Return what tells a file of weights from any other."""
    with weights.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()[:16]


def read_prefixes(folder: Path) -> Prefixes:
    """Return the prefixes that a model's own files name; none when they name none."""
    sentences = cast(_Sentences, _json(folder / "config_sentence_transformers.json", default={}))
    match sentences:
        case {"prompts": {"query": query, "document": passage}}:
            return Prefixes(query, passage)
        case {"prompts": {"query": query, "passage": passage}}:
            return Prefixes(query, passage)
        case {"prompts": {"query": query}}:
            return Prefixes(query)
        case _:
            return Prefixes()


def _encoder(folder: Path) -> tuple[_Encoder, Path]:
    """Return the encoder of a folder and the file of its weights."""
    first_token = _takes_first_token(folder)
    for name in _ONNX:
        if (folder / name).is_file():
            return _OnnxEncoder(folder / name, takes_first_token=first_token), folder / name
    config = cast(_Config, _json(folder / "config.json"))
    match config:
        case {
            "model_type": "bert",
            "hidden_act": "gelu",
            "num_hidden_layers": int() as layers,
            "num_attention_heads": int() as heads,
            "layer_norm_eps": float() as epsilon,
        }:
            shape = BertShape(
                layers=layers, heads=heads, epsilon=epsilon, takes_first_token=first_token
            )
        case _:
            raise EmbeddingError(
                f"{folder}/config.json is not of a BERT model, the only kind that is computed without PyTorch: "
                "export the model to model.onnx, or install loopline[semantic] and write sentence-transformers:<folder>"
            )
    weights = folder / "model.safetensors"
    if not weights.is_file():
        raise EmbeddingError(f"{folder} has neither model.safetensors nor model.onnx")
    try:
        tensors = cast(_SafeTensors, import_module("safetensors.numpy")).load_file(weights)
        return Bert(shape, tensors), weights
    except (KeyError, ValueError) as error:
        raise EmbeddingError(
            f"{weights} does not have the weights of a BERT model: {error}"
        ) from error


def _takes_first_token(folder: Path) -> bool:
    pooling = cast(_Pooling, _json(folder / "1_Pooling" / "config.json", default={}))
    match pooling:
        case {"pooling_mode_cls_token": True}:
            return True
        case {"pooling_mode_mean_tokens": False}:
            raise EmbeddingError(
                f"{folder}/1_Pooling/config.json asks for neither the mean nor the first token"
            )
        case _:
            return False


def _tokenizer(folder: Path) -> _Tokenizer:
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise EmbeddingError(f"{folder} has no tokenizer.json")
    tokenizer = cast(_Tokenizer, Tokenizer.from_file(str(path)))
    sentences = cast(_Sentences, _json(folder / "sentence_bert_config.json", default={}))
    match sentences:
        case {"max_seq_length": int() as limit}:
            tokenizer.enable_truncation(limit)
        case _:
            tokenizer.enable_truncation(DEFAULT_TOKENS)
    tokenizer.no_padding()
    return tokenizer


def _encodable(text: str) -> str:
    """Return the text without lone surrogates, which no tokenizer takes."""
    return text.encode("utf-8", "replace").decode()


def _json(path: Path, default: object = None) -> object:
    if default is not None and not path.is_file():
        return default
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise EmbeddingError(f"{path} cannot be read as JSON: {error}") from error
