"""The connections to stores that this process opens, each handed to a function before it is used."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

from loopline.store.sqlite import Connection, on_connect


@contextmanager
def each_connection(prepare: Callable[[Connection], object]) -> Generator[None, None, None]:
    on_connect.append(prepare)
    try:
        yield
    finally:
        on_connect.remove(prepare)
