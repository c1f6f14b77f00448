"""Opening a store: what is refused, and how processes that begin one at once get along."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from sqlalchemy import Engine

from loopline.adapters.sql.files import (
    DATABASE_ERRORS,
    create_private,
    explained,
    file_id,
    make_private_folder,
    patiently,
    reading,
    reading_still,
    writing,
)
from loopline.adapters.sql.schema import create, is_empty
from loopline.adapters.sql.still import as_left
from loopline.errors import StoreError


def open_to_read(path: Path, connections: int) -> Engine:
    """An engine that reads a store which is there already.

    Raises:
        StoreError: there is none.
    """
    if not path.exists():
        raise StoreError(f"there is no store at {path}: run a bundle first, or name another store")
    with ExitStack() as failed:
        engine = reading(path, read_only=True, connections=connections)
        failed.callback(engine.dispose)
        looking = engine if as_left(path) is None else reading_still(path)
        if _holds_nothing(path, looking):
            raise StoreError(f"{path} is empty: run a bundle first, or name another store")
        failed.pop_all()
    return engine


def open_to_write(path: Path, connections: int) -> tuple[Engine, Engine]:
    """An engine that reads a store and one that writes to it; there is a store afterwards.

    Raises:
        StoreError: there cannot be one.
    """
    with ExitStack() as failed:
        try:
            make_private_folder(path.parent)
        except OSError as error:
            raise explained(path, error) from error
        readers = reading(path, read_only=False, connections=connections)
        failed.callback(readers.dispose)
        writer = writing(path)
        failed.callback(writer.dispose)
        # Another program's database is refused before anything in it is changed.
        if not path.exists() or _holds_nothing(path, readers):
            _begin(path, writer)
        failed.pop_all()
    return readers, writer


def _holds_nothing(path: Path, engine: Engine) -> bool:
    if path.is_dir():
        raise StoreError(f"{path} is a folder: name a file in it")
    file_id(path)

    def look() -> bool:
        with engine.begin() as connection:
            return is_empty(connection, path)

    try:
        return patiently(look)
    except DATABASE_ERRORS as error:
        raise explained(path, error) from error


def _begin(path: Path, engine: Engine) -> None:
    def begin() -> None:
        with engine.begin() as connection:
            if is_empty(connection, path):
                create(connection)

    try:
        create_private(path)
        patiently(begin)
    except DATABASE_ERRORS as error:
        raise explained(path, error) from error
