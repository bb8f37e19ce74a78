"""What a model tells is waited for, and the work stops when nobody waits any more."""

import asyncio
from contextlib import aclosing

import pytest

from saccade.serving.listening import events_of, results_of
from saccade.serving.schemas import Part, Result


class Told:
    """A model that says what the test has it say."""

    def __init__(self, *at_once):
        self.at_once, self.stops = at_once, 0

    def ask(self, tell):
        self.tell = tell
        for event in self.at_once:
            tell(event)
        return self.stop

    def stop(self):
        self.stops += 1


def result(index: int) -> Result:
    return Result(index=index, translations=[])


def test_all_results_are_waited_for_and_parts_are_passed_over():
    async def asked():
        model = Told(result(1), Part(index=0, text="so"))
        waiting = asyncio.create_task(results_of(model.ask, 2))
        await asyncio.sleep(0)
        assert not waiting.done()
        assert model.stops == 0
        model.tell(result(0))
        return await waiting, model.stops

    assert asyncio.run(asked()) == ([result(1), result(0)], 1)


def test_what_goes_wrong_is_raised_and_what_is_told_after_it_does_not_count():
    model = Told(result(0), KeyError("first"), KeyError("second"), result(1))
    with pytest.raises(KeyError, match="first"):
        asyncio.run(results_of(model.ask, 2))
    assert model.stops == 1
    model = Told(result(0), KeyError("first"), result(1))

    async def followed():
        async for event in events_of(model.ask, 2):
            assert event == result(0)

    with pytest.raises(KeyError, match="first"):
        asyncio.run(followed())
    assert model.stops == 1


def test_who_waits_no_longer_stops_the_work():
    async def cancelled():
        model = Told()
        waiting = asyncio.create_task(results_of(model.ask, 1))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        model.tell(result(0))  # it was on its way
        return model.stops

    async def closed():
        model = Told(Part(index=0, text="so"), result(0))
        async with aclosing(events_of(model.ask, 1)) as events:
            assert await anext(events) == Part(index=0, text="so")
        return model.stops

    assert asyncio.run(cancelled()) == 1
    assert asyncio.run(closed()) == 1


def test_a_model_is_not_asked_for_nothing():
    async def asked():
        return await results_of(model.ask, 0), [event async for event in events_of(model.ask, 0)]

    model = Told()
    assert asyncio.run(asked()) == ([], [])
    assert not hasattr(model, "tell")
