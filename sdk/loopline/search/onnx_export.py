"""Writes a BERT encoder as an ONNX network with 8-bit weights, with the package `onnx` and without PyTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

EXPORT_VERSION = 1
"""Part of the key of stored vectors: increment it when an exported network makes other vectors."""
OPERATORS = 20
"""The version of the standard operators."""
IR_VERSION = 9
RUNTIME_DOMAIN = "com.microsoft"
"""The domain of the operators that onnxruntime adds; `DynamicQuantizeMatMul` multiplies in 8 bits."""
MASKED = -10_000.0
"""What is added to the attention weight of padding."""
LARGEST = 127
"""The largest 8-bit weight. Each column of a matrix has its own scale."""
_Array = NDArray[np.float32] | NDArray[np.int8] | NDArray[np.int64]


FLOAT, INT64 = 1, 7
"""The numbers of the types of ONNX."""


class _Network:
    """A network that grows node by node. Each method returns the name of its output. The package `onnx` is not typed."""

    def __init__(self) -> None:
        self.helper: Any = import_module("onnx.helper")
        self._arrays: Any = import_module("onnx.numpy_helper")
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, array: _Array) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(self._arrays.from_array(array, name))
        return name

    def add(
        self, operator: str, *inputs: str, domain: str = "", **attributes: float | Sequence[int]
    ) -> str:
        """Append a node and return the name of its only output."""
        name = f"n{len(self.nodes)}"
        self.nodes.append(
            self.helper.make_node(operator, inputs, [name], domain=domain, **attributes)
        )
        return name

    def split(self, value: str, parts: int) -> list[str]:
        """Return the items of the first axis, each without that axis."""
        return [
            self.add("Gather", value, self.constant(np.array(number, dtype=np.int64)), axis=0)
            for number in range(parts)
        ]

    def dense(self, value: str, weight: NDArray[np.float32], bias: NDArray[np.float32]) -> str:
        """Add nodes that multiply by the transposed weight in 8 bits and add the bias; return the output's name."""
        columns = np.ascontiguousarray(weight.T)
        largest = np.maximum(np.abs(columns).max(axis=0), 1e-12)  # a column of zeros stays one
        scales = (largest / LARGEST).astype(np.float32)
        quantized = np.rint(columns / scales).astype(np.int8)
        inputs = (self.constant(quantized), self.constant(scales))
        zeros = self.constant(np.zeros(len(scales), dtype=np.int8))
        return self.add(
            "DynamicQuantizeMatMul",
            value,
            *inputs,
            zeros,
            self.constant(bias),
            domain=RUNTIME_DOMAIN,
        )


def export_encoder(
    tensors: Mapping[str, NDArray[np.float32]], *, layers: int, heads: int, epsilon: float
) -> bytes:
    """Return an ONNX network that maps `input_ids` and `attention_mask` to the last hidden states of a BERT encoder.

    `tensors` have their published names without the prefix `bert.`.

    Raises:
        ImportError: the package `onnx` is not installed.
        KeyError: a tensor is missing.
    """
    network = _Network()

    def norm(value: str, name: str) -> str:
        weight, bias = (network.constant(tensors[f"{name}.{part}"]) for part in ("weight", "bias"))
        return network.add("LayerNormalization", value, weight, bias, axis=-1, epsilon=epsilon)

    def dense(value: str, *names: str) -> str:
        weight = np.concatenate([tensors[f"{name}.weight"] for name in names])
        return network.dense(
            value, weight, np.concatenate([tensors[f"{name}.bias"] for name in names])
        )

    x = norm(_embed(network, tensors), "embeddings.LayerNorm")
    mask = _attention_mask(network)
    for number in range(layers):
        layer = f"encoder.layer.{number}"
        own = f"{layer}.attention.self"
        projected = dense(x, f"{own}.query", f"{own}.key", f"{own}.value")
        width = tensors[f"{own}.query.weight"].shape[0]
        attended = _attend(network, projected, mask, heads, width)
        attended = dense(attended, f"{layer}.attention.output.dense")
        x = norm(network.add("Add", attended, x), f"{layer}.attention.output.LayerNorm")
        inner = network.add("Gelu", dense(x, f"{layer}.intermediate.dense"))
        outer = dense(inner, f"{layer}.output.dense")
        x = norm(network.add("Add", outer, x), f"{layer}.output.LayerNorm")
    network.nodes.append(network.helper.make_node("Identity", [x], ["states"], domain=""))
    return _serialize(network, tensors["embeddings.LayerNorm.bias"].shape[0])


def _embed(network: _Network, tensors: Mapping[str, NDArray[np.float32]]) -> str:
    """Add nodes for the sum of the vectors of token, position and type; return the name of the output."""
    words, places, kinds = (
        tensors[f"embeddings.{name}_embeddings.weight"]
        for name in ("word", "position", "token_type")
    )
    scales = np.abs(words).max(axis=1, keepdims=True) / LARGEST
    rows = np.rint(words / np.maximum(scales, 1e-12)).astype(np.int8)
    found = network.add("Gather", network.constant(rows), "input_ids", axis=0)
    scale = network.add("Gather", network.constant(scales.astype(np.float32)), "input_ids", axis=0)
    embedded = network.add("Mul", network.add("Cast", found, to=FLOAT), scale)
    positions = places + kinds[0]
    length = network.split(network.add("Shape", "input_ids"), 2)[1]
    zero, one = (network.constant(np.array(value, dtype=np.int64)) for value in (0, 1))
    numbers = network.add("Range", zero, length, one)
    placed = network.add("Gather", network.constant(positions), numbers, axis=0)
    return network.add("Add", embedded, placed)


def _attention_mask(network: _Network) -> str:
    """Return what is added to the attention weights: 0 for a token, `MASKED` for padding."""
    one = network.constant(np.array(1, dtype=np.float32))
    is_padding = network.add("Sub", one, network.add("Cast", "attention_mask", to=FLOAT))
    added = network.add("Mul", is_padding, network.constant(np.array(MASKED, dtype=np.float32)))
    return network.add("Unsqueeze", added, network.constant(np.array([1, 2], dtype=np.int64)))


def _attend(network: _Network, projected: str, mask: str, heads: int, width: int) -> str:
    """Add nodes for attention over `projected` (queries, keys and values joined); return the name of the output."""
    size = width // heads
    shape = network.constant(np.array([0, 0, 3, heads, size], dtype=np.int64))
    parts = network.add("Reshape", projected, shape)
    # The kinds first, then the texts and the heads.
    query, key, value = network.split(network.add("Transpose", parts, perm=[2, 0, 3, 1, 4]), 3)
    scale = network.constant(np.array(size**-0.5, dtype=np.float32))
    turned = network.add("Transpose", key, perm=[0, 1, 3, 2])
    weights = network.add("MatMul", network.add("Mul", query, scale), turned)
    weights = network.add("Softmax", network.add("Add", weights, mask), axis=-1)
    attended = network.add("Transpose", network.add("MatMul", weights, value), perm=[0, 2, 1, 3])
    joined = network.constant(np.array([0, 0, width], dtype=np.int64))
    return network.add("Reshape", attended, joined)


def _serialize(network: _Network, width: int) -> bytes:
    """Return the network as an ONNX file: from token ids and mask to states with `width` columns."""
    helper = network.helper
    inputs = [
        helper.make_tensor_value_info(name, INT64, ["texts", "tokens"])
        for name in ("input_ids", "attention_mask")
    ]
    outputs = [helper.make_tensor_value_info("states", FLOAT, ["texts", "tokens", width])]
    graph = helper.make_graph(network.nodes, "bert", inputs, outputs, initializer=network.constants)
    versions = [helper.make_opsetid("", OPERATORS), helper.make_opsetid(RUNTIME_DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=versions, ir_version=IR_VERSION)
    file = BytesIO()
    onnx: Any = import_module("onnx")
    onnx.save_model(model, file)
    return file.getvalue()
