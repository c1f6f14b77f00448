"""A script that removes the container of a harness that was killed, even if the daemon is still creating it.

Its arguments are the path of the daemon's socket and the name of the container.
"""

from __future__ import annotations

import http.client
import socket
import sys
import time

TRIES = 50
PAUSE = 0.1
"""The seconds between tries. All tries together take longer than the creation of a container."""
_REMOVED = 204


class _SocketConnection(http.client.HTTPConnection):
    """An HTTP connection over a Unix socket; `host` is its path."""

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(self.host)


def remove(path: str, name: str) -> int:
    """Request the removal of a container, and return the HTTP status of the response.

    Raises:
        OSError: the daemon cannot be reached.
    """
    connection = _SocketConnection(path, timeout=60)
    connection.request("DELETE", f"/containers/{name}?force=1&v=1", headers={"Host": "docker"})
    status = connection.getresponse().status
    connection.close()
    return status


def main() -> None:
    """Remove the container as soon as it exists; give up after five seconds."""
    path, name = sys.argv[1:]
    try:
        for _ in range(TRIES):
            if remove(path, name) == _REMOVED:
                return
            time.sleep(PAUSE)
    except (OSError, http.client.HTTPException):
        return  # without its daemon, the container cannot be removed


if __name__ == "__main__":
    main()
