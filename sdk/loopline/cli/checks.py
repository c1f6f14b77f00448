"""`loopline doctor`: what isolation of programs needs, and whether this machine has it."""

from __future__ import annotations

from rich.text import Text

from loopline.cli.options import Choices
from loopline.cli.process import ANSWERED, FAILED
from loopline.cli.terminal import Screen
from loopline.harness import execution_features
from loopline.models import Json, JsonObject


async def doctor(choices: Choices, screen: Screen) -> int:
    """Say what isolation of programs needs, and whether it is here."""
    backends = await execution_features()
    if choices.as_json:
        document: JsonObject = {
            name: [
                dict[str, Json](
                    name=feature.name,
                    ok=feature.ok,
                    detail=feature.detail,
                    required=feature.required,
                )
                for feature in features
            ]
            for name, features in backends.items()
        }
        screen.write_json(document)
    else:
        for name, features in backends.items():
            screen.print(Text(name, "bold"))
            for feature in features:
                status = "ok" if feature.ok else "missing" if feature.required else "without"
                screen.print(Text(f"  {status:8} {feature.name}: {feature.detail}"))
    runs = any(
        all(feature.ok for feature in features if feature.required)
        for features in backends.values()
    )
    return ANSWERED if runs else FAILED
