"""Names of spans and metrics: OpenTelemetry's conventions for GenAI, and Loopline's own.

They are those of v1.41.0, the last release of the conventions. Later renames are not released.
"""

from __future__ import annotations

from typing import Final

INVOKE_AGENT: Final = "invoke_agent"
CHAT: Final = "chat"
EXECUTE_TOOL: Final = "execute_tool"

OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
AGENT: Final = "gen_ai.agent.name"
CONVERSATION: Final = "gen_ai.conversation.id"
REQUEST_MODEL: Final = "gen_ai.request.model"
RESPONSE_MODEL: Final = "gen_ai.response.model"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
CACHE_READ_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
CACHE_WRITE_TOKENS: Final = "gen_ai.usage.cache_creation.input_tokens"
TOOL: Final = "gen_ai.tool.name"
TOOL_TYPE: Final = "gen_ai.tool.type"
CALL_ID: Final = "gen_ai.tool.call.id"
ERROR: Final = "error.type"

INPUT_MESSAGES: Final = "gen_ai.input.messages"
OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
ARGUMENTS: Final = "gen_ai.tool.call.arguments"
RESULT: Final = "gen_ai.tool.call.result"

TURN: Final = "loopline.turn_id"
ROUND: Final = "loopline.round"
PURPOSE: Final = "loopline.purpose"
EXIT_REASON: Final = "loopline.exit_reason"
ROUNDS: Final = "loopline.rounds"
COST: Final = "loopline.cost"

TOKEN_USAGE: Final = "gen_ai.client.token.usage"
TOKEN_TYPE: Final = "gen_ai.token.type"
OPERATION_DURATION: Final = "gen_ai.client.operation.duration"

SECONDS: Final = tuple(0.01 * 2**power for power in range(14))
"""Upper bounds of the buckets of durations: 0.01, 0.02, 0.04, … 81.92."""
CALLS: Final = (1, 2, 4, 8, 16, 32, 64, 128)
"""Upper bounds of the buckets of counts per turn."""
TOKENS: Final = tuple(float(4**power) for power in range(14))
"""Upper bounds of the buckets of token counts: 1, 4, 16, … 67,108,864."""
