"""Removes the container of a harness that was killed, also one that the daemon is still making.

It is started as a script of its own, with the path of the daemon's socket and the name of the container.
"""

from __future__ import annotations

import http.client
import socket
import sys
import time

TRIES, PAUSE = 50, 0.1
"""A request to make a container that was on its way when the harness was killed is over by then."""
_REMOVED = 204


class _SocketConnection(http.client.HTTPConnection):
    """A connection to a daemon by the path of its socket."""

    def connect(self) -> None:
        """Connect to the socket."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(self.host)


def remove(path: str, name: str) -> int:
    """Ask for the removal of a container; return the status of the answer.

    Raises:
        OSError: the daemon is gone.
    """
    connection = _SocketConnection(path, timeout=60)
    connection.request("DELETE", f"/containers/{name}?force=1&v=1", headers={"Host": "docker"})
    status = connection.getresponse().status
    connection.close()
    return status


def main() -> None:
    """Remove the container as soon as there is one."""
    path, name = sys.argv[1:]
    try:
        for _ in range(TRIES):
            if remove(path, name) == _REMOVED:
                return
            time.sleep(PAUSE)
    except (OSError, http.client.HTTPException):
        return  # with the daemon its containers are out of reach


if __name__ == "__main__":
    main()
