"""A server that speaks HTTP/2 over TLS and nothing else, with a certificate of its own."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import RequestReceived

from tests.support.peers.http_server import Peer

HEAD = [(":status", "200"), ("content-type", "text/event-stream")]
MAKE = (
    "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
)


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for this machine, which signs itself, and its key."""
    made, key = folder / "certificate.pem", folder / "key.pem"
    name = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(made)]
    subprocess.run(["openssl", *MAKE.split(), *name], check=True, capture_output=True)
    return made, key


@asynccontextmanager
async def http2_like(
    signed: tuple[Path, Path], *answers: tuple[bytes, bool]
) -> AsyncGenerator[Peer, None]:
    """Answer each request with these bytes, and end the answer or keep it open; the last again and again."""
    peer, remaining_answers = Peer(), list(reversed(answers))

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer.change(opened=1)
        h2_connection = H2Connection(H2Configuration(client_side=False))
        h2_connection.initiate_connection()
        try:
            writer.write(h2_connection.data_to_send())
            while data := await reader.read(2**16):
                for event in h2_connection.receive_data(data):
                    if isinstance(event, RequestReceived):
                        events, ends = (
                            remaining_answers.pop()
                            if len(remaining_answers) > 1
                            else remaining_answers[0]
                        )
                        h2_connection.send_headers(event.stream_id, HEAD)
                        h2_connection.send_data(event.stream_id, events, end_stream=ends)
                writer.write(h2_connection.data_to_send())
        except ConnectionError:
            pass  # the client has gone
        finally:
            writer.close()
            peer.change(opened=-1)

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*signed)
    context.set_alpn_protocols(["h2"])
    server = await asyncio.start_server(talk, "127.0.0.1", ssl=context)
    peer.url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield peer
        server.close()
        await peer.until(lambda it: it.connections.open == 0)
