"""llama.cpp's own server, in a process of its own, with a model whose weights are random."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.peers.gguf import write_model
from tests.support.peers.http_server import Peer

_SERVE = """
import sys, xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.n_ctx, params.n_predict = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
params.port, params.hostnames, params.ui = 0, ["127.0.0.1"], False
params.n_parallel, params.cpuparams.n_threads, params.n_threads_http = 1, 1, 4
params.warmup, params.verbosity, params.sampling.seed = False, 0, 2
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)
sys.stdin.read()  # it ends with whoever started it
"""


@dataclass(frozen=True, slots=True)
class Llama:
    peer: Peer
    process: subprocess.Popen[str]


@contextmanager
def llama(
    folder: Path, *, window: int = 16_384, most: int = 2_000, ends: bool = True
) -> Generator[Llama, None, None]:
    """Serve a model with that window, that writes at most so many tokens; a token is a byte."""
    model = folder / "model.gguf"
    write_model(model, ends=ends)
    with subprocess.Popen(
        [sys.executable, "-c", _SERVE, str(model), str(window), str(most)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        yield Llama(Peer(process.stdout.readline().strip()), process)
