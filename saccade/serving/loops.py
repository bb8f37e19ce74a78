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

    That is a few hundred thousand objects of torch and its like; it took a twentieth of a small model's time.
    """
    gc.collect()
    gc.freeze()
