"""The choice of an embedder by its name, such as `local:FOLDER`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from loopline.bundle import Properties
from loopline.search import Embedder, EmbeddingError, SharedEmbedder

EXTRAS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "local": (("numpy", "tokenizers", "safetensors"), "semantic-light"),
    "sentence-transformers": (("numpy", "torch", "sentence_transformers"), "semantic"),
    "openai": (("numpy",), "semantic-light"),
}
"""The packages that the embedders of each provider need, and the extra that installs them."""


def _is_installed(package: str) -> bool:
    return find_spec(package) is not None


def check_embedder(
    name: str, *, setting: str, is_installed: Callable[[str], bool] = _is_installed
) -> None:
    """Check that a name is one of an embedder, and that what it needs is installed.

    Raises:
        EmbeddingError: it is not; the message names the setting, or the line to install.
    """
    provider, colon, model = name.partition(":")
    if provider not in EXTRAS or not (colon and model.strip()):
        providers = ", ".join(f"{provider}:…" for provider in EXTRAS)
        raise EmbeddingError(f"{setting} is {name!r}: write one of {providers}")
    packages, extra = EXTRAS[provider]
    missing = [package for package in packages if not is_installed(package)]
    if missing:
        raise EmbeddingError(
            f"{setting} is {name!r}, which needs {', '.join(missing)}: "
            f"pip install 'loopline[{extra}]'"
        )


class Embedders:
    """The embedders of a bundle by their names. Whoever names the same one shares it, so that it is loaded once."""

    def __init__(self, folder: Path | None, environment: Mapping[str, str]) -> None:
        """Take the folder at which relative paths start, and an environment with the key and address of a provider."""
        self._folder = folder
        self._environment = environment
        self._shared: dict[str, SharedEmbedder] = {}

    def named(self, name: str, *, setting: str) -> SharedEmbedder:
        """Return the embedder of that name, which is loaded with its first use.

        Raises:
            EmbeddingError: there is no such embedder, or what it needs is not installed; the message names the setting.
        """
        check_embedder(name, setting=setting)
        if name not in self._shared:
            self._shared[name] = SharedEmbedder(
                partial(load_embedder, name, folder=self._folder, environment=self._environment)
            )
        return self._shared[name]

    def of_memory(self, properties: Properties) -> SharedEmbedder | None:
        """Return the embedder that `memory.embedder` names, or None if it names none.

        Raises:
            EmbeddingError: there is no such embedder, or what it needs is not installed.
        """
        name = str(properties.at("memory.embedder", "")).strip()
        return self.named(name, setting="memory.embedder") if name else None

    async def close(self) -> None:
        """Close those that were loaded."""
        for shared in self._shared.values():
            await asyncio.to_thread(shared.close)


def load_embedder(name: str, *, folder: Path | None, environment: Mapping[str, str]) -> Embedder:
    """Return the embedder of that name, which blocks for seconds; `check_embedder` has accepted the name.

    A relative path starts at `folder`. `environment` has the key and the address of a provider.

    Raises:
        EmbeddingError: the model cannot be loaded.
    """
    provider, _, model = name.partition(":")
    if provider == "local":
        from loopline.search.local_embedder import LocalEmbedder

        return LocalEmbedder(model_folder(model.strip(), folder))
    if provider == "openai":
        from loopline.search.http_embedder import HttpEmbedder

        return HttpEmbedder(model.strip(), environment)
    from loopline.search.torch_embedder import TorchEmbedder

    path = (folder or Path()) / model.strip()
    return TorchEmbedder(str(path) if path.is_dir() else model.strip())


def model_folder(name: str, base: Path | None) -> Path:
    """Return the folder of a model: a path, or the folder in an installed package that has a `tokenizer.json`.

    Raises:
        EmbeddingError: there is neither.
    """
    path = (base or Path()) / Path(name).expanduser()
    if path.is_dir():
        return path
    spec = find_spec(name) if name.isidentifier() else None
    for location in (spec.submodule_search_locations if spec else None) or ():
        for tokenizer in sorted(Path(location).glob("**/tokenizer.json")):
            return tokenizer.parent
    raise EmbeddingError(f"{name!r} is neither a folder with a model nor a package that has one")
