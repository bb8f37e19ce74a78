"""The share of time in which a GPU has nothing to do, of the intervals in which it has."""

import pytest

from benchmarks.idle import idle


@pytest.mark.parametrize(
    ("intervals", "share"),
    [
        ([(0, 10)], 0.0),
        ([(0, 4), (6, 10)], 0.2),
        ([(6, 10), (0, 4)], 0.2),
        ([(0, 8), (2, 4), (3, 9), (9, 10)], 0.0),
        ([(100, 110), (105, 106), (130, 140), (130, 135)], 0.5),
        ([(5, 5)], 0.0),
        ([], 1.0),
    ],
)
def test_time_that_several_share_is_counted_once(intervals, share):
    assert idle(intervals) == pytest.approx(share)
