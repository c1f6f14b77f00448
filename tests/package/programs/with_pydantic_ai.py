"""The extra `pydantic-ai`: a model of its classes answers."""

from __future__ import annotations

from collections.abc import AsyncIterator

from pydantic_ai import ModelMessage
from pydantic_ai.models.function import AgentInfo, FunctionModel

from loopline import Bundle, run_sync


async def polite(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
    """Greet whoever asks."""
    yield f"Good evening, after {len(messages)} message and {len(info.function_tools) > 0}."


guide = Bundle(id="guide", instructions="You guide.")
result = run_sync(guide, "Hello!", model=FunctionModel(stream_function=polite))
assert result.answer.startswith("Good evening"), result
