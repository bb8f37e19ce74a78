"""What the processes of a server have in common: the quickest event loop, and no time for what never changes."""

import asyncio
import gc

import uvicorn


def quickest_loop() -> asyncio.AbstractEventLoop:
    """A new one, of the quickest kind that is installed: uvicorn knows."""
    factory = uvicorn.Config("", log_config=None).get_loop_factory() or asyncio.new_event_loop
    return factory()


def settled() -> None:
    """All that is in memory now stays: the collector need not look through it again and again.

    That is torch and its like; what it gains is within the noise of a few runs (docs/lab-log.md).
    """
    gc.collect()
    gc.freeze()
