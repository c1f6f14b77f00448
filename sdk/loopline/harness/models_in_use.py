"""The models that runs were given, and when each is closed."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager

from loopline.errors import LooplineError
from loopline.models import ClosingModel, Model


class ModelsInUse:
    """Holds models until they are closed: with the harness, or when a run begins with others and none uses them."""

    def __init__(self) -> None:
        self._held: dict[int, Model] = {}
        self._runs: Counter[int] = Counter()

    @asynccontextmanager
    async def used(self, models: Iterable[Model]) -> AsyncGenerator[None, None]:
        """A run has these models, until the context is left."""
        given = {id(model): model for model in models}
        self._held |= given
        self._runs.update(list(given))
        try:
            await self._release()
            yield
        finally:
            self._runs.subtract(list(given))

    async def _release(self) -> None:
        """Close what no run uses; one that objects is held, and objects again when the harness closes."""
        for key in [key for key in self._held if not self._runs[key]]:
            model = self._held.pop(key)
            del self._runs[key]
            if isinstance(model, ClosingModel):
                try:
                    await model.close(failed=False)
                except LooplineError:
                    self._held[key] = model

    def close_with(self, stack: AsyncExitStack, *, failed: bool) -> None:
        """Have every model closed with the stack."""
        for model in self._held.values():
            if isinstance(model, ClosingModel):
                stack.push_async_callback(model.close, failed=failed)
