"""The first decodings of a process, in several threads at once, which killed one in ten such processes."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import os, sys, threading
from loopline.timeline.codec import decode, encode, warm_codec
from loopline.timeline.bodies import RoundStart

texts = dict(system_sha256="", tools_sha256="", stable_sha256="")
start = RoundStart(
    saw=1, takes=(1,), epoch=1, opened_by="start", model="m", protocol="native", renderer=1, version=2, **texts
)
kind, version, stored = encode(start)
sys.setswitchinterval(1e-6)
for warm in [True, False] * 40:
    child = os.fork()
    if not child:
        if warm:
            warm_codec()
        together = threading.Barrier(6)

        def read() -> None:
            together.wait()
            for _ in range(20):
                decode(kind, version, stored)

        threads = [threading.Thread(target=read) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0, status
"""


def test_threads_that_decode_the_first_start_of_a_round_at_once_do_not_end_the_process() -> None:
    subprocess.run([sys.executable, "-W", "ignore", "-c", PROGRAM], check=True, timeout=120)
