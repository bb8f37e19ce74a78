"""The thread that runs a model."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from saccade.serving.settings import ServingSettings
from saccade.translator import Translator

T = TypeVar("T")


class Worker:
    """One thread a model."""

    def __init__(self, translator: Translator, settings: ServingSettings) -> None:
        self.translator = translator
        self._thread = ThreadPoolExecutor(1)

    async def call(self, function: Callable[[], T]) -> T:
        """Run something in the thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)

    def close(self) -> None:
        self._thread.shutdown()
