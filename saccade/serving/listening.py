"""What a model tells of a request, to be waited for: all results at once, or each event as it comes."""

import asyncio
from collections.abc import AsyncGenerator, Callable

from saccade.serving.schemas import Part, Result

Event = Part | Result
Tell = Callable[[Event | Exception], None]
Stop = Callable[[], object]
Ask = Callable[[Tell], Stop]
"""Asks something of a model, which tells of it in the event loop's thread: parts, a result for each text, or what went
wrong, after which nothing else counts. Who asks calls what is returned, once, when it listens no longer, all being told
or not: work that is not done then stops."""


async def results_of(ask: Ask, texts: int) -> list[Result]:
    """The results of so many texts, in the order in which they are finished."""
    found: list[Result] = []
    if not texts:
        return found
    all_there: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def tell(event: Event | Exception) -> None:
        if isinstance(event, Result):
            found.append(event)
        if all_there.done():
            return
        if isinstance(event, Exception):
            all_there.set_exception(event)
        elif len(found) == texts:
            all_there.set_result(None)

    stop = ask(tell)
    try:
        await all_there
    finally:
        stop()
    return found


async def events_of(ask: Ask, texts: int) -> AsyncGenerator[Event, None]:
    """Parts as they are written and results as they are finished. Close it (`aclosing`), and the work stops."""
    if not texts:
        return
    inbox: asyncio.Queue[Event | Exception] = asyncio.Queue()
    stop = ask(inbox.put_nowait)
    try:
        while texts:
            event = await inbox.get()
            if isinstance(event, Exception):
                raise event
            texts -= isinstance(event, Result)
            yield event
    finally:
        stop()
