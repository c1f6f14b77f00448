"""The agents of a bundle: those it lists, and the files in its folder `agents`."""

from __future__ import annotations

from loopline.bundle.load import LoadedBundle
from loopline.crew import AGENTS_FOLDER, Agents, load_agents


def bundle_agents(loaded: LoadedBundle) -> Agents:
    """Return the agents that the bundle and its workflow class list, and those in its folder.

    Raises:
        BundleError: a file is wrong, or two agents have one name; the message names file and line.
    """
    folder = None if loaded.folder is None else loaded.folder / AGENTS_FOLDER
    in_folder = load_agents(folder) if folder is not None and folder.is_dir() else []
    return Agents([*loaded.bundle.agents, *loaded.bundle.workflow.agents, *in_folder])
