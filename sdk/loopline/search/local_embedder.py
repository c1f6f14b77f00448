"""An embedder for a model in a local folder without PyTorch: with NumPy, or with onnxruntime for a `model.onnx`."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import file_digest
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from loopline.models import Json
from loopline.search.embedder import EmbeddingError, Vector
from loopline.search.onnx_export import EXPORT_VERSION, export_encoder

logger: logging.Logger = logging.getLogger("loopline")

Matrix = NDArray[np.float32]

# Abramowitz and Stegun, 7.1.26: the error function with an error below 1.5e-7, the precision of a 32-bit float.
_ERF_T = np.float32(0.3275911)
_ERF = [np.float32(c) for c in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)]
_HALF = np.float32(0.5)
_ONE = np.float32(1)
_ROOT_HALF = np.float32(0.5**0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class BertShape:
    """The parameters of the computation, from the `config.json` of a model."""

    layers: int
    heads: int
    epsilon: float
    takes_first_token: bool
    """True if the vector of a text is that of its first token, False if it is the mean of all tokens."""


@dataclass(frozen=True, slots=True)
class _Dense:
    weight: Matrix
    """Inputs × outputs."""
    bias: Matrix

    def __call__(self, x: Matrix) -> Matrix:
        result: Matrix = x @ self.weight
        result += self.bias
        return result


@dataclass(frozen=True, slots=True)
class _Norm:
    weight: Matrix
    bias: Matrix
    epsilon: np.float32

    def __call__(self, x: Matrix) -> Matrix:
        centred: Matrix = x - x.mean(axis=1, keepdims=True)
        variance = np.einsum("ij,ij->i", centred, centred) / np.float32(x.shape[1])
        centred /= np.sqrt(variance + self.epsilon)[:, None]
        centred *= self.weight
        centred += self.bias
        return centred


@dataclass(frozen=True, slots=True)
class _Layer:
    query_key_value: _Dense
    attended: _Dense
    attention_norm: _Norm
    inner: _Dense
    outer: _Dense
    norm: _Norm


class Bert:
    """A BERT encoder with its weights in memory. Any thread may use it."""

    def __init__(self, shape: BertShape, tensors: Mapping[str, Matrix]) -> None:
        """`tensors` have the names of published weights, with or without the prefix `bert.`.

        Raises:
            KeyError: a tensor is missing.
        """
        self._shape = shape
        named = {name.removeprefix("bert."): tensor for name, tensor in tensors.items()}
        epsilon = np.float32(shape.epsilon)

        def dense(*names: str) -> _Dense:
            weights = [named[f"{name}.weight"].astype(np.float32) for name in names]
            biases = [named[f"{name}.bias"].astype(np.float32) for name in names]
            weight = np.ascontiguousarray(np.concatenate(weights).T)
            return _Dense(weight, np.concatenate(biases))

        def norm(name: str) -> _Norm:
            weight = named[f"{name}.weight"].astype(np.float32)
            bias = named[f"{name}.bias"].astype(np.float32)
            return _Norm(weight, bias, epsilon)

        self._words = named["embeddings.word_embeddings.weight"].astype(np.float32)
        self.dimensions: int = self._words.shape[1]
        positions = named["embeddings.position_embeddings.weight"].astype(np.float32)
        kind = named["embeddings.token_type_embeddings.weight"][0].astype(np.float32)
        self._positions: Matrix = positions + kind
        self._norm = norm("embeddings.LayerNorm")
        self._layers: list[_Layer] = []
        for number in range(shape.layers):
            start = f"encoder.layer.{number}"
            attention = f"{start}.attention.self"
            self._layers.append(
                _Layer(
                    dense(f"{attention}.query", f"{attention}.key", f"{attention}.value"),
                    dense(f"{start}.attention.output.dense"),
                    norm(f"{start}.attention.output.LayerNorm"),
                    dense(f"{start}.intermediate.dense"),
                    dense(f"{start}.output.dense"),
                    norm(f"{start}.output.LayerNorm"),
                )
            )

    def encode(self, texts: Sequence[Sequence[int]]) -> Matrix:
        """Return a vector of length 1 for each text, given as token ids, as the rows of a matrix."""
        lengths = [len(ids) for ids in texts]
        ends = np.cumsum([0, *lengths])
        words = np.concatenate([np.asarray(ids, dtype=np.int64) for ids in texts])
        places = np.concatenate([np.arange(length) for length in lengths])
        x = self._norm(self._words[words] + self._positions[places])
        for layer in self._layers:
            x = layer.attention_norm(layer.attended(self._attention(layer, x, ends)) + x)
            x = layer.norm(layer.outer(_gelu(layer.inner(x))) + x)
        if self._shape.takes_first_token:
            rows: Matrix = x[ends[:-1]]
        else:
            sums: Matrix = np.add.reduceat(x, ends[:-1])
            rows = sums / np.asarray(lengths, dtype=np.float32)[:, None]
        unit: Matrix = rows / np.linalg.norm(rows, axis=1, keepdims=True).astype(np.float32)
        return unit

    def _attention(self, layer: _Layer, x: Matrix, ends: NDArray[np.int64]) -> Matrix:
        """Return the self-attention of the rows `x`; the rows of text i are from `ends[i]` to `ends[i + 1]`."""
        heads = self._shape.heads
        width = x.shape[1]
        size = width // heads
        projected = layer.query_key_value(x)
        projected[:, :width] *= np.float32(size**-0.5)
        attended = np.empty_like(x)
        for start, end in pairwise(ends):
            # Contiguous with the heads first: NumPy then computes each product by one call of the BLAS library.
            parts = projected[start:end].reshape(end - start, 3, heads, size)
            query, key, value = np.ascontiguousarray(parts.transpose(1, 2, 0, 3))
            weights: Matrix = query @ key.transpose(0, 2, 1)
            weights -= weights.max(axis=2, keepdims=True)
            np.exp(weights, out=weights)
            weights /= weights.sum(axis=2, keepdims=True)
            attended[start:end] = (weights @ value).transpose(1, 0, 2).reshape(end - start, width)
        return attended


def _gelu(x: Matrix) -> Matrix:
    """Return x · Φ(x), where Φ is the cumulative normal distribution."""
    scaled: Matrix = x * _ROOT_HALF
    size: Matrix = np.abs(scaled)
    t: Matrix = _ONE / (_ONE + _ERF_T * size)
    series: Matrix = np.full_like(t, _ERF[0])
    for coefficient in _ERF[1:]:
        series *= t
        series += coefficient
    series *= t
    size *= size
    np.negative(size, out=size)
    np.exp(size, out=size)
    series *= size
    erf: Matrix = np.copysign(_ONE - series, scaled)
    erf += _ONE
    erf *= x
    erf *= _HALF
    return erf


BATCH = 8
"""The texts of one matrix. Two cores take about a second for them, and larger batches are not faster."""
DEFAULT_TOKENS = 256
_ONNX = ("model.onnx", "onnx/model.onnx")


class _Encoder(Protocol):
    @property
    def dimensions(self) -> int: ...

    def encode(self, texts: Sequence[Sequence[int]]) -> Matrix: ...


@dataclass(frozen=True, slots=True)
class Prefixes:
    """The prefixes that a model expects before a query and before a passage."""

    query: str = ""
    passage: str = ""


class LocalEmbedder:
    """An embedder for a sentence-transformers folder: `config.json`, `tokenizer.json` and the weights."""

    batch: int = BATCH

    def __init__(self, folder: Path, exports: Path | None = None) -> None:
        """Load the weights, which takes about a second for each 100 MB.

        With `exports`, a folder for derived files, a BERT model without a `model.onnx` is exported there once with 8-bit
        weights if onnxruntime and onnx are installed; otherwise NumPy computes it, about ten times slower.

        Raises:
            EmbeddingError: a file is missing, or the kind of model is not supported; the message names the file.
        """
        if not folder.is_dir():
            raise EmbeddingError(f"{folder} is not a folder with a model")
        self._prefixes = read_prefixes(folder)
        self._tokenizer = _load_tokenizer(folder)
        encoder, weights, precision = _load_encoder(folder, exports, self._tokenizer)
        self.encoder: _Encoder = encoder
        self.dimensions: int = encoder.dimensions
        prefixes = f"{self._prefixes.query!r}/{self._prefixes.passage!r}"
        self.key: str = f"local/{folder.name}/{weights_digest(weights)}/{precision}/{prefixes}"

    def embed_passages(self, texts: Sequence[str]) -> list[Vector]:
        """Return the vector of each text, in the same order. Texts that are too long are truncated."""
        return self._embed([self._prefixes.passage + text for text in texts])

    def embed_query(self, text: str) -> Vector:
        """Return the vector of a query."""
        return self._embed([self._prefixes.query + text])[0]

    def close(self) -> None:
        """Do nothing: the model is freed with this object."""

    def _embed(self, texts: Sequence[str]) -> list[Vector]:
        """Return the vector of each text in order, in batches of 8; the tokenizer truncates long texts."""
        # Tokenizers reject lone surrogates.
        valid = [text.encode("utf-8", "replace").decode() for text in texts]
        tokens = [encoding.ids for encoding in self._tokenizer.encode_batch(valid)]
        vectors: list[Vector] = []
        for start in range(0, len(tokens), BATCH):
            rows = self.encoder.encode(tokens[start : start + BATCH])
            vectors += [row.astype("<f4").tobytes() for row in rows]
        return vectors


class _OnnxEncoder:
    """An encoder with a `model.onnx` that maps token ids and an attention mask to the last hidden states."""

    def __init__(self, path: Path, *, takes_first_token: bool) -> None:
        try:
            runtime: Any = import_module("onnxruntime")
        except ImportError as error:
            raise EmbeddingError(
                f"{path} needs onnxruntime: pip install onnxruntime, or remove the file to use NumPy"
            ) from error
        options = runtime.SessionOptions()
        # With spinning threads the rate is halved when other programs use the cores.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = runtime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
        self._inputs = {entry.name for entry in self._session.get_inputs()}
        self._takes_first_token = takes_first_token
        self.dimensions: int = int(self._session.get_outputs()[0].shape[-1])

    def encode(self, texts: Sequence[Sequence[int]]) -> Matrix:
        """Return a vector of length 1 for each text, given as token ids, as the rows of a matrix."""
        longest = max(map(len, texts))
        ids = np.zeros((len(texts), longest), dtype=np.int64)
        mask = np.zeros_like(ids)
        for row, text in enumerate(texts):
            ids[row, : len(text)] = text
            mask[row, : len(text)] = 1
        inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        taken = {name: value for name, value in inputs.items() if name in self._inputs}
        states: Matrix = self._session.run(None, taken)[0]
        if self._takes_first_token:
            rows: Matrix = states[:, 0]
        else:
            weights = mask[:, :, None].astype(np.float32)
            rows = (states * weights).sum(axis=1) / weights.sum(axis=1)
        unit: Matrix = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        return unit


def weights_digest(weights: Path) -> str:
    """Return a short digest of a file of weights."""
    with weights.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()[:16]


def read_prefixes(folder: Path) -> Prefixes:
    """Read the prefixes from the configuration of a model; empty if it has none."""
    match _read_json(folder / "config_sentence_transformers.json", default={}):
        case {"prompts": {"query": str(query), "document": str(passage)}}:
            return Prefixes(query, passage)
        case {"prompts": {"query": str(query), "passage": str(passage)}}:
            return Prefixes(query, passage)
        case {"prompts": {"query": str(query)}}:
            return Prefixes(query)
        case _:
            return Prefixes()


CHECKED_TEXTS = (
    "How is a token renewed before it expires?",
    "def read_lines(path): return path.read_text().splitlines()",
    "The server answers 404 if the page was removed. Clients must not ask again for an hour.",
    "Rivers and bridges are mended in spring, when the snow of the mountains is gone. " * 4,
)
"""The texts whose vectors an export must have too, but for rounding."""
LEAST_COSINE = 0.95
"""The smallest cosine of an exported network's vector and that of the weights; 0.99 is usual."""


def _load_encoder(folder: Path, exports: Path | None, tokenizer: Any) -> tuple[_Encoder, Path, str]:
    """Load the encoder of a folder; return the encoder, the file of its weights, and its precision as text.

    A `model.onnx` of the folder is preferred, then an export with 8-bit weights, then NumPy.

    Raises:
        EmbeddingError: the weights are missing, the kind of model is not supported, or the export cannot be written.
    """
    first_token = _takes_first_token(folder)
    for name in _ONNX:
        if (folder / name).is_file():
            path = folder / name
            return _OnnxEncoder(path, takes_first_token=first_token), path, "float32"
    shape = _read_shape(folder, takes_first_token=first_token)
    weights = folder / "model.safetensors"
    if not weights.is_file():
        raise EmbeddingError(f"{folder} has neither model.safetensors nor model.onnx")
    if exports is not None and all(map(find_spec, ("onnxruntime", "onnx"))):
        exported = exports / f"{weights_digest(weights)}-v{EXPORT_VERSION}.onnx"
        if exported.is_file() or _export(shape, weights, exported, tokenizer):
            encoder = _OnnxEncoder(exported, takes_first_token=first_token)
            return encoder, weights, f"int8-v{EXPORT_VERSION}"
    return _load_bert(shape, weights, _read_tensors(weights)), weights, "float32"


def _load_bert(shape: BertShape, weights: Path, tensors: Mapping[str, Matrix]) -> Bert:
    """Return the encoder with the tensors of the file `weights`; raise EmbeddingError if one is missing."""
    try:
        return Bert(shape, tensors)
    except (KeyError, ValueError) as error:
        raise EmbeddingError(
            f"{weights} does not have the weights of a BERT model: {error}"
        ) from error


def _read_shape(folder: Path, *, takes_first_token: bool) -> BertShape:
    """Read the shape of a BERT model from `config.json`; raise an EmbeddingError for any other kind of model."""
    match _read_json(folder / "config.json"):
        case {
            "model_type": "bert",
            "hidden_act": "gelu",
            "num_hidden_layers": int() as layers,
            "num_attention_heads": int() as heads,
            "layer_norm_eps": float() as epsilon,
        }:
            return BertShape(
                layers=layers, heads=heads, epsilon=epsilon, takes_first_token=takes_first_token
            )
        case _:
            raise EmbeddingError(
                f"{folder}/config.json is not of a BERT model, the only kind that is computed without PyTorch: "
                "export the model to model.onnx, or install loopline[semantic] and write sentence-transformers:<folder>"
            )


def _read_tensors(weights: Path) -> dict[str, Matrix]:
    """Read the tensors of a file by name, without the prefix `bert.`; raise EmbeddingError if it is malformed."""
    try:
        library: Any = import_module("safetensors.numpy")
        tensors: dict[str, Matrix] = library.load_file(weights)
    except ValueError as error:
        raise EmbeddingError(f"{weights} cannot be read: {error}") from error
    return {name.removeprefix("bert."): tensor for name, tensor in tensors.items()}


def _export(shape: BertShape, weights: Path, exported: Path, tokenizer: Any) -> bool:
    """Write the network with 8-bit weights to `exported`; if its vectors differ too much, log that and return False.

    The file is complete or missing, also if the process is killed.

    Raises:
        EmbeddingError: the file cannot be written.
    """
    tensors = _read_tensors(weights)
    encoder = _load_bert(shape, weights, tensors)
    network = export_encoder(
        {name: tensor.astype(np.float32) for name, tensor in tensors.items()},
        layers=shape.layers,
        heads=shape.heads,
        epsilon=shape.epsilon,
    )
    texts = [encoding.ids for encoding in tokenizer.encode_batch(list(CHECKED_TEXTS))]
    try:
        exported.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=exported.parent, suffix=".new", delete=False) as file:
            file.write(network)
        path = Path(file.name)
        try:
            quantized = _OnnxEncoder(path, takes_first_token=shape.takes_first_token)
            cosine = float((quantized.encode(texts) * encoder.encode(texts)).sum(axis=1).min())
            if cosine >= LEAST_COSINE:
                path.replace(exported)
                return True
        finally:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise EmbeddingError(f"{exported} cannot be written: {error}") from error
    logger.warning(
        "%s is computed by NumPy, because 8-bit weights change its vectors: cosine %.3f",
        weights,
        cosine,
    )
    return False


def _takes_first_token(folder: Path) -> bool:
    """Return True if the vector of a text is that of its first token, False if it is the mean, also without a file.

    Raises:
        EmbeddingError: the pooling file turns both off, or is not JSON.
    """
    match _read_json(folder / "1_Pooling" / "config.json", default={}):
        case {"pooling_mode_cls_token": True}:
            return True
        case {"pooling_mode_mean_tokens": False}:
            raise EmbeddingError(
                f"{folder}/1_Pooling/config.json asks for neither the mean nor the first token"
            )
        case _:
            return False


def _load_tokenizer(folder: Path) -> Any:
    """Load `tokenizer.json`, without padding; texts are truncated after `max_seq_length` tokens, by default 256.

    Raises:
        EmbeddingError: the file is missing.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise EmbeddingError(f"{folder} has no tokenizer.json")
    tokenizer: Any = Tokenizer.from_file(str(path))
    match _read_json(folder / "sentence_bert_config.json", default={}):
        case {"max_seq_length": int() as limit}:
            tokenizer.enable_truncation(limit)
        case _:
            tokenizer.enable_truncation(DEFAULT_TOKENS)
    tokenizer.no_padding()
    return tokenizer


def _read_json(path: Path, default: Json = None) -> Json:
    """Read a JSON file; return `default`, if it is not None, for a missing file.

    Raises:
        EmbeddingError: the file cannot be read or is not JSON.
    """
    if default is not None and not path.is_file():
        return default
    try:
        document: Json = json.loads(path.read_text())
        return document
    except (OSError, ValueError) as error:
        raise EmbeddingError(f"{path} cannot be read as JSON: {error}") from error
