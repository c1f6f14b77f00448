"""A server in a process of its own, which tests stop, let go on and kill."""

from __future__ import annotations

import signal
import subprocess
from typing import Any


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

    def _signal(self, number: int) -> None:
        if self.process is not None:
            self.process.send_signal(number)
