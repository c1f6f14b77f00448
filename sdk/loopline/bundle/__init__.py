"""Bundles: what an author writes, and how it is loaded, configured and run."""

from loopline.bundle.bundle import Bundle
from loopline.bundle.communicator import ChatCommunicator
from loopline.bundle.descriptors import load_skills, load_tools
from loopline.bundle.installation import Installation
from loopline.bundle.load import Available, LoadedBundle, available, blame, load
from loopline.bundle.properties import Properties, Setting, Written, merged, written
from loopline.bundle.running import begin, make_deps, run
from loopline.bundle.services import RunServed, Services
from loopline.bundle.settings import LoopSettings, loop_settings
from loopline.bundle.template import create
from loopline.bundle.wired import wired, wiring_problems
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
