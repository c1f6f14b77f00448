"""A chat shows each piece of an answer as it comes, also while something is typed."""

from __future__ import annotations

import queue
import random
import re
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from loopline.models import JsonObject, ToolCall, dumps
from tests.doors.command import LIMIT_SECONDS, Loopline, wait_for, write
from tests.doors.terminal import Terminal
from tests.support.local_http import Answering, http_server

Pieces = Callable[[], Iterator[str | ToolCall]]
"""What a reply is made of; each piece is sent as soon as it is yielded, in a thread of the server."""


@contextmanager
def paced_server(replies: Sequence[Pieces]) -> Generator[str]:
    """Answer the n-th request with the n-th reply, and yield the URL; it goes on when a client leaves in the middle."""
    waiting = iter(replies)

    class Handler(Answering):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def post(self) -> None:
            self.body()
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            try:
                self._answer(next(waiting))
            except (BrokenPipeError, ConnectionResetError):  # a steer has cut it off
                self.close_connection = True

        def _answer(self, pieces: Pieces) -> None:
            reason = "stop"
            for piece in pieces():
                if isinstance(piece, ToolCall):
                    reason = "tool_calls"
                self._send(_delta(piece))
            self._send({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
            self.wfile.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")

        def _send(self, chunk: JsonObject) -> None:
            line = f"data: {dumps(chunk)}\n\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))

    with http_server(Handler) as url:
        yield f"{url}/v1"


def _delta(piece: str | ToolCall) -> JsonObject:
    """A chunk of a completion with this piece of its text, or with this call."""
    delta: JsonObject = (
        {"content": piece} if isinstance(piece, str) else {"tool_calls": [_call(piece)]}
    )
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


def _call(call: ToolCall) -> JsonObject:
    function: JsonObject = {
        "name": call.name.replace(".", "__"),
        "arguments": dumps(call.arguments),
    }
    return {"index": 0, "id": "call_1", "type": "function", "function": function}


BUNDLE = """from loopline import Bundle

bundle = Bundle(id="talker", instructions="You talk.")
"""
WORDS = [f"w{n:02}" for n in range(40)]
TYPED_AT = 17


def drawn_pieces(seed: int) -> list[list[str]]:
    """The words in pieces of one to three."""
    chance, rest, pieces = random.Random(seed), list(WORDS), list[list[str]]()
    while rest:
        size = chance.randint(1, 3)
        pieces.append(rest[:size])
        rest = rest[size:]
    return pieces


def words_of(screen: str) -> list[str]:
    """The model's words on the screen, from its top on."""
    return re.findall(r"\bw[0-9]{2}\b", screen)


def shows(terminal: Terminal, words: list[str]) -> bool:
    """Whether these words stand on the screen, each once and in their order."""
    return words_of(terminal.screen) == words


def test_a_piece_is_on_the_screen_before_the_next_one_is_sent(tmp_path: Path) -> None:
    write(tmp_path, {"talker/__init__.py": BUNDLE})
    pieces, seen = drawn_pieces(7), queue.Queue[None]()

    def answer() -> Iterator[str]:
        for piece in pieces:
            yield "".join(f"{word} " if int(word[1:]) % 9 else f"{word}\n" for word in piece)
            seen.get(timeout=LIMIT_SECONDS)

    def last() -> Iterator[str]:
        yield "Milk, then."

    with paced_server([answer, last]) as url:
        loopline = Loopline(tmp_path, {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "none"})
        with Terminal(loopline, "chat", "talker", "--model", "openai-chat:gpt-4o") as terminal:
            terminal.see("\n>")
            terminal.type("go\r")
            for count in range(len(pieces)):
                so_far = [word for piece in pieces[: count + 1] for word in piece]
                wait_for(partial(shows, terminal, so_far))
                if count == TYPED_AT:
                    terminal.type("and milk\r")
                    terminal.see("added to turn_1")
                wait_for(partial(shows, terminal, so_far))
                assert " blocks · conversation " not in terminal.screen
                seen.put(None)
            terminal.see("Milk, then.")
            terminal.see(" rounds · ")
            assert shows(terminal, WORDS)
            assert "(an earlier answer: the user has said more)" in terminal.screen
            assert "> and milk\nadded to turn_1" in terminal.screen
            terminal.type("/quit\r")
            assert terminal.end() == 0


PARAGRAPHS = [" ".join(WORDS[n : n + 2]) for n in range(0, len(WORDS), 2)]


@pytest.mark.parametrize("seed", range(3))
def test_a_terminal_that_narrows_while_paragraphs_and_keys_come_shows_each_word_once(
    tmp_path: Path, seed: int
) -> None:
    write(tmp_path, {"talker/__init__.py": BUNDLE})
    chance, asked = random.Random(seed), queue.Queue[None]()

    def answer() -> Iterator[str]:
        for paragraph in PARAGRAPHS:
            yield f"{paragraph}\n\n"
            asked.get(timeout=LIMIT_SECONDS)

    def shows_end_of(words: list[str]) -> bool:
        shown = words_of(terminal.screen)
        return bool(shown) and shown == words[-len(shown) :] and shown[-1] == words[-1]

    with paced_server([answer]) as url:
        loopline = Loopline(tmp_path, {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "none"})
        arguments = ("chat", "talker", "--model", "openai-chat:gpt-4o")
        with Terminal(loopline, *arguments) as terminal:
            terminal.see("\n>")
            terminal.type("go\r")
            wait_for(partial(shows_end_of, WORDS[:2]))
            for n in range(2, len(PARAGRAPHS) + 1):
                asked.put(None)
                time.sleep(chance.uniform(0, 0.03))
                terminal.resize(80 - 2 * n)
                wait_for(partial(shows_end_of, WORDS[: 2 * n]))
            asked.put(None)
            terminal.see("1 round · ")
            assert shows_end_of(WORDS)


@pytest.mark.parametrize("typed", [False, True])
def test_a_narrower_terminal_shows_each_word_once_and_a_stopped_turn_has_its_round(
    tmp_path: Path, typed: bool
) -> None:
    write(tmp_path, {"talker/__init__.py": BUNDLE})
    stopped = threading.Event()

    def answer() -> Iterator[str]:
        yield f"**Words**\n\n{' '.join(WORDS)}"
        stopped.wait(LIMIT_SECONDS)

    with paced_server([answer]) as url:
        loopline = Loopline(tmp_path, {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "none"})
        arguments = ("chat", "talker", "--model", "openai-chat:gpt-4o", "-c", "c1")
        with Terminal(loopline, *arguments, controlling=not typed) as terminal:
            terminal.see("\n>")
            terminal.type("go\r")
            wait_for(partial(shows, terminal, WORDS))
            for columns in (70, 44, 31):
                terminal.resize(columns)
                terminal.type("x\x7f" * typed)
                terminal.see("running")  # the toolbar, which is drawn again
                wait_for(lambda: shows(terminal, WORDS) and "\nWords\n" in terminal.screen)
            terminal.type("/stop\r")
            terminal.see("stopped · 1 round")
            stopped.set()
            terminal.type("/quit\r")
            assert terminal.end() == 1  # the last turn has no answer
        with Terminal(loopline, *arguments) as again:
            again.see("> go\nWords\n\nw00 w01")
            assert shows(again, WORDS)
