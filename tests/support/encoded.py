"""Imported by a process that others are forked from: how bodies are encoded is built there once, and not in each of them."""

from __future__ import annotations

from loopline.timeline import UserPrompt, encode

encode(UserPrompt(text=""))
