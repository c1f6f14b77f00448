"""The extra `semantic-light`: a small model in a folder makes vectors, and they are kept and found again."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
from safetensors.numpy import save
from tokenizers import Tokenizer, models, pre_tokenizers

from loopline.harness.spaces import check_embedder, load_embedder
from loopline.knowledge import IndexedFile, IndexKey
from loopline.knowledge.fts import FtsIndexes
from loopline.search import chunk, search
from loopline.search.vector_files import VectorFiles

WIDTH, INNER, WORDS = 16, 32, ("[UNK]", "green", "tea", "old", "leaves", "are", "bitter")
folder = Path("model")
folder.mkdir()
(folder / "config.json").write_text(
    json.dumps(
        {
            "model_type": "bert",
            "hidden_act": "gelu",
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "layer_norm_eps": 1e-12,
        }
    )
)
tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(WORDS)}, "[UNK]"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer.save(str(folder / "tokenizer.json"))

random = np.random.default_rng(7)
tensors: dict[str, np.ndarray] = {}


def tensor(name: str, *shape: int) -> None:
    """Add random weights."""
    tensors[name] = random.normal(0, 0.5, shape).astype(np.float32)


def dense(name: str, inputs: int, outputs: int) -> None:
    """Add the weights of a dense layer."""
    tensor(f"{name}.weight", outputs, inputs)
    tensor(f"{name}.bias", outputs)


def norm(name: str) -> None:
    """Add the weights of a normalisation."""
    tensor(f"{name}.weight", WIDTH)
    tensor(f"{name}.bias", WIDTH)


tensor("embeddings.word_embeddings.weight", len(WORDS), WIDTH)
tensor("embeddings.position_embeddings.weight", 256, WIDTH)
tensor("embeddings.token_type_embeddings.weight", 2, WIDTH)
norm("embeddings.LayerNorm")
for part in ("query", "key", "value"):
    dense(f"encoder.layer.0.attention.self.{part}", WIDTH, WIDTH)
dense("encoder.layer.0.attention.output.dense", WIDTH, WIDTH)
norm("encoder.layer.0.attention.output.LayerNorm")
dense("encoder.layer.0.intermediate.dense", WIDTH, INNER)
dense("encoder.layer.0.output.dense", INNER, WIDTH)
norm("encoder.layer.0.output.LayerNorm")
(folder / "model.safetensors").write_bytes(save(tensors))

check_embedder("local:model", setting="knowledge.embedder")
embedder = load_embedder("local:model", folder=Path(), environment={})
texts = {"tea.txt": "green tea\n", "leaves.txt": "old leaves\n"}
files = {path: IndexedFile(path, "", chunk(path, text)) for path, text in texts.items()}
read = partial(map, files.__getitem__)
index = FtsIndexes().build(IndexKey("pages"), dict.fromkeys(files, ""), read, str)
vectors = VectorFiles(Path("vectors")).build("one", embedder, index, lambda done, total: True)
assert vectors is not None
question = embedder.embed_passages(["leaves.txt\nold leaves\n"])[0]
assert vectors.nearest(question, limit=1)[0].number == 2
assert search("tea", index, vectors, question, limit=1)[0].chunk.path == "tea.txt"
