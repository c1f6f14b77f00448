"""Bundles: what an author writes, and how it is loaded, configured and run."""

from loopline.bundle.build_calls import wired, wiring_problems
from loopline.bundle.bundle import Bundle
from loopline.bundle.communicator import ChatCommunicator
from loopline.bundle.descriptors import load_skills, load_tools
from loopline.bundle.load import Available, LoadedBundle, available, blame, load
from loopline.bundle.prepared_run import RunServed, Services
from loopline.bundle.properties import (
    LoopSettings,
    Properties,
    Setting,
    Written,
    loop_settings,
    merged,
    written,
)
from loopline.bundle.run import begin, make_deps, run
from loopline.bundle.template import Installation, create
from loopline.bundle.workflow import BaseWorkflow

__all__ = [
    "Available",
    "BaseWorkflow",
    "Bundle",
    "ChatCommunicator",
    "Installation",
    "LoadedBundle",
    "LoopSettings",
    "Properties",
    "RunServed",
    "Services",
    "Setting",
    "Written",
    "available",
    "begin",
    "blame",
    "create",
    "load",
    "load_skills",
    "load_tools",
    "loop_settings",
    "make_deps",
    "merged",
    "run",
    "wired",
    "wiring_problems",
    "written",
]
