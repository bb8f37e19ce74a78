"""Two directions of links made one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from saccade.alignment.symmetry import METHODS, symmetrise
from saccade.errors import SaccadeError

MATRIX = st.integers(1, 6).flatmap(
    lambda t: st.integers(1, 6).flatmap(
        lambda s: st.tuples(*[st.lists(st.booleans(), min_size=t * s, max_size=t * s)] * 2).map(
            lambda cells: tuple(np.array(side).reshape(t, s) for side in cells)
        )
    )
)


def by_the_book(one: np.ndarray, other: np.ndarray, final: bool) -> np.ndarray:
    """Grow-diag(-final-and) as it is written down: sets, one sentence, one point after the other."""
    T, S = one.shape
    a, b = ({(t, s) for t in range(T) for s in range(S) if side[t, s]} for side in (one, other))
    links = a & b

    def free(t: int, s: int) -> tuple[bool, bool]:
        return all(y != t for y, _ in links), all(x != s for _, x in links)

    changed = True
    while changed:
        changed = False
        for t in range(T):
            for s in range(S):
                if (t, s) not in links:
                    continue
                for dt, ds in ((-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1)):
                    new = (t + dt, s + ds)
                    if new in (a | b) and new not in links and any(free(*new)):
                        links.add(new)
                        changed = True
    if final:
        for side in (a, b):
            for t in range(T):
                for s in range(S):
                    if (t, s) in side and all(free(t, s)):
                        links.add((t, s))
    found = np.zeros((T, S), bool)
    for link in links:
        found[link] = True
    return found


def matrix(text: str) -> np.ndarray:
    return np.array([[cell == "x" for cell in row.split()] for row in text.strip().splitlines()])


def test_grow_diag_final_and_on_an_example_worked_by_hand():
    """The intersection is (0,0) and (1,1). (1,2) is beside (1,1) and its column is free: added. (2,3) is then beside
    (1,2): added. (3,1) has a free row, but touches no link, and column 1 is taken: left out. (4,4) touches (2,3)'s
    neighbourhood no more, but row 4 and column 4 are both free: added at the end. (0,4) comes last, and its row is
    taken."""
    one = matrix("""
        x . . . .
        . x x . .
        . . . x .
        . x . . .
        . . . . x""")
    other = matrix("""
        x . . . x
        . x . . .
        . . . . .
        . . . . .
        . . . . .""")
    wanted = matrix("""
        x . . . .
        . x x . .
        . . . x .
        . . . . .
        . . . . x""")
    assert (symmetrise(one[None], other[None])[0] == wanted).all()
    wanted[4, 4] = False
    assert (symmetrise(one[None], other[None], "grow-diag")[0] == wanted).all()


@given(MATRIX)
def test_the_heuristics_are_those_of_the_book(sides):
    one, other = sides
    for method, final in (("grow-diag", False), ("grow-diag-final-and", True)):
        assert (symmetrise(one[None], other[None], method)[0] == by_the_book(one, other, final)).all()


@given(MATRIX)
def test_what_is_found_lies_between_intersection_and_union(sides):
    one, other = sides[0][None], sides[1][None]
    for method in METHODS:
        found = symmetrise(one, other, method)
        assert (found >= (one & other)).all()
        assert (found <= (one | other)).all()


def test_a_batch_is_its_sentences_one_by_one():
    random = np.random.default_rng(1)
    one, other = random.random((2, 50, 7, 9)) < 0.2
    for method in METHODS:
        alone = [symmetrise(one[i : i + 1], other[i : i + 1], method)[0] for i in range(50)]
        assert (symmetrise(one, other, method) == np.stack(alone)).all()


def test_a_method_that_is_not_known_is_named():
    with pytest.raises(SaccadeError, match="--symmetrise=grow: is not known; use intersection"):
        symmetrise(np.zeros((1, 1, 1), bool), np.zeros((1, 1, 1), bool), "grow")
