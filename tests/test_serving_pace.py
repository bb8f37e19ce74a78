"""When newcomers are let in, by a clock that the test turns."""

import pytest

from saccade.serving import pace
from saccade.serving.pace import KEPT, LONGEST, SOON, STEPS, Pace


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    one = Clock()
    monkeypatch.setattr(pace, "time", one)
    return one


def after_a_batch(clock: Clock, size: int, seconds: float, patience: float = 2.0) -> Pace:
    one = Pace(patience)
    one.arrived()
    assert one.due(size, at_work=0)
    one.let_in(size, fresh=True)
    clock.now += seconds
    one.stepped(busy=False)
    return one


def test_who_comes_when_nothing_is_at_work_is_let_in_at_once(clock):
    one = Pace(2.0)
    one.arrived()
    assert one.due(1, at_work=0)
    assert not Pace(2.0).due(0, at_work=0)


def test_a_batch_waits_for_the_clients_of_the_last_one_and_not_for_long(clock):
    one = after_a_batch(clock, size=8, seconds=0.4)
    one.arrived()
    assert not one.due(3, at_work=0)
    assert one.gathering
    clock.now += SOON / 2
    one.arrived()
    clock.now += SOON / 2
    assert not one.due(6, at_work=0), "another has just come"
    assert one.due(8, at_work=0), "all of them are there"
    clock.now += SOON
    assert one.due(6, at_work=0), "nobody has come for a while"


def test_however_many_trickle_in_it_begins_at_last(clock):
    one = after_a_batch(clock, size=100, seconds=5.0)
    began, waiting = clock.now, 0
    while True:
        waiting += 1
        one.arrived()
        if one.due(waiting, at_work=0):
            break
        clock.now += SOON / 2
    assert clock.now - began <= LONGEST + SOON


def test_those_at_work_are_joined_after_patience_and_some_steps(clock):
    one = Pace(2.0)
    one.let_in(4, fresh=True)
    assert not one.due(1, at_work=4)
    clock.now += 2.1
    assert not one.due(1, at_work=4), "too few steps"
    for _ in range(STEPS):
        one.stepped(busy=True)
    assert one.due(1, at_work=4)
    one.let_in(1, fresh=False)
    assert not one.due(1, at_work=5), "the next one waits anew"


def test_answers_wait_a_moment_for_others_and_never_when_nothing_else_is_at_work(clock):
    one = Pace(2.0)
    assert one.tells(busy=True), "none has gone out for long"
    clock.now += KEPT / 2
    assert not one.tells(busy=True)
    assert one.tells(busy=False), "there is nobody to wait for"
    clock.now += KEPT / 2
    assert not one.tells(busy=True), "the last have just gone out"
    clock.now += KEPT
    assert one.tells(busy=True)
