"""A BERT encoder in NumPy: the forward pass of a sentence-embedding model, without a framework.

The texts of a batch stand one after another in a matrix, so no time goes into padding. What is computed and in
which order is Devlin et al., 2019 (arXiv:1810.04805), as its published weights expect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float32]

# Abramowitz and Stegun, 7.1.26: the error function to 1.5e-7, which is the precision of a 32-bit float.
_ERF_T = np.float32(0.3275911)
_ERF = [np.float32(c) for c in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)]
_HALF, _ONE, _ROOT_HALF = np.float32(0.5), np.float32(1), np.float32(0.5**0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class BertShape:
    """The numbers in a model's `config.json` that decide the computation."""

    layers: int
    heads: int
    epsilon: float
    takes_first_token: bool
    """Whether the vector of a text is that of its first token instead of the mean of all."""


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
    """An encoder with its weights in memory; any thread may use it."""

    def __init__(self, shape: BertShape, tensors: Mapping[str, Matrix]) -> None:
        """`tensors` are named as in the published weights, with or without the prefix `bert.`.

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
            weight, bias = named[f"{name}.weight"], named[f"{name}.bias"]
            return _Norm(weight.astype(np.float32), bias.astype(np.float32), epsilon)

        self._words = named["embeddings.word_embeddings.weight"].astype(np.float32)
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

    @property
    def dimensions(self) -> int:
        """The number of coordinates of a vector."""
        return int(self._words.shape[1])

    def encode(self, texts: Sequence[Sequence[int]]) -> Matrix:
        """Return a row of length 1 for each text, given as its token ids, in their order."""
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
        heads, width = self._shape.heads, x.shape[1]
        size = width // heads
        projected = layer.query_key_value(x)
        projected[:, :width] *= np.float32(size**-0.5)
        attended = np.empty_like(x)
        for start, end in pairwise(ends):
            # Heads first and contiguous, so that each product is one call of the BLAS library.
            parts = projected[start:end].reshape(end - start, 3, heads, size)
            query, key, value = np.ascontiguousarray(parts.transpose(1, 2, 0, 3))
            weights: Matrix = query @ key.transpose(0, 2, 1)
            weights -= weights.max(axis=2, keepdims=True)
            np.exp(weights, out=weights)
            weights /= weights.sum(axis=2, keepdims=True)
            attended[start:end] = (weights @ value).transpose(1, 0, 2).reshape(end - start, width)
        return attended


def _gelu(x: Matrix) -> Matrix:
    """Return x · Φ(x), where Φ is the normal distribution."""
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
