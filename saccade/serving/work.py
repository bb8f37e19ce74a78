"""Work that needs translations (`saccade.text.rows`), driven by a server: pages and files."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from saccade.serving.deadline import Deadline
from saccade.serving.server import Server
from saccade.serving.told import Told
from saccade.text.rows import Work

T = TypeVar("T")
Translate = Callable[[list[str]], Awaitable[list[str]]]


async def driven(work: "Work[T]", translate: Translate, deadline: Deadline) -> T:
    """Do the work: its own steps in a thread, so that a large file holds nobody up. `deadline`: of all of it."""
    answers: list[str] | None = None
    while True:
        ended, texts, made = await deadline.hold(asyncio.to_thread(_step, work, answers))
        if ended:
            return made  # type: ignore[return-value]
        answers = await translate(texts)


def _step(work: "Work[T]", answers: list[str] | None) -> tuple[bool, list[str], T | None]:
    try:
        return False, next(work) if answers is None else work.send(answers), None
    except StopIteration as end:
        return True, [], end.value


def translating(server: Server, model: str, client: str, deadline: Deadline) -> Translate:
    """Translations by one of the server's models, in parts of a size that it takes. `deadline`: of all of them."""

    async def translate(texts: list[str]) -> list[str]:
        known: dict[str, str] = {}
        window: list[str] = []
        for text in [*dict.fromkeys(texts), None]:
            full = len(window) >= server.settings.max_texts // 2
            too_long = text is not None and sum(map(len, window)) + len(text) > server.settings.max_characters // 2
            if window and (text is None or full or too_long):
                answer = await server.translate(window, model, Told(scores=False), client, deadline=deadline)
                known.update(zip(window, (result.translations[0].text for result in answer.results), strict=True))
                window = []
            if text is not None:
                window.append(text)
        return [known[text] for text in texts]

    return translate
