"""A server in a process of its own, which tests stop, let go on and kill."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

START_SECONDS = 60.0


class ServerProcess:
    process: subprocess.Popen[Any] | None = None

    def pause(self) -> None:
        """Stop the process, so that it keeps its connections and its leases and answers nothing."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None

    def await_port(self, port: int, log: Path | None = None) -> None:
        """Wait until the process accepts connections; `AssertionError` with its log if it ends, or takes too long."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=2).close()
            except OSError:
                has_ended = self.process is None or self.process.poll() is not None
                if has_ended or time.monotonic() > deadline:
                    text = log.read_text() if log else ""
                    raise AssertionError(f"the server did not start: {text}") from None
                time.sleep(0.02)
            else:
                return

    def _signal(self, number: int) -> None:
        if self.process is not None:
            self.process.send_signal(number)
