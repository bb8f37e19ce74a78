"""Masks against brute force, and what a stack of layers under them can know."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from saccade.attention.masks import causal, dependencies, prefix
from saccade.attention.multihead import Heads, SelfAttention
from saccade.errors import SaccadeError


def random_graph(length: int, seed: int, share: float = 0.3) -> torch.Tensor:
    """A graph without circles, its positions in no particular order."""
    generator = torch.Generator().manual_seed(seed)
    edges = (torch.rand(length, length, generator=generator) < share).tril(-1)
    order = torch.randperm(length, generator=generator)
    return edges[order][:, order]


def ancestors(graph: list[list[bool]], i: int) -> set[int]:
    """By walking."""
    found: set[int] = set()
    to_visit = [i]
    while to_visit:
        for j, edge in enumerate(graph[to_visit.pop()]):
            if edge and j not in found:
                found.add(j)
                to_visit.append(j)
    return found


@settings(max_examples=30, deadline=None)
@given(lengths=st.lists(st.integers(0, 6), min_size=1, max_size=3), queries=st.integers(1, 6), more=st.integers(0, 3))
def test_a_prefix_is_seen_by_all_and_the_rest_causally(lengths, queries, more):
    keys = queries + more
    found = prefix(torch.tensor(lengths), queries, keys)
    assert found.shape == (len(lengths), 1, queries, keys)
    for b, length in enumerate(lengths):
        for i in range(queries):
            for j in range(keys):
                assert found[b, 0, i, j] == (j < length or j <= more + i)


@settings(max_examples=40, deadline=None)
@given(ranks=st.lists(st.integers(0, 4), min_size=1, max_size=6), itself=st.booleans())
def test_ranks_say_who_sees_whom(ranks, itself):
    found = dependencies(ranks=torch.tensor(ranks), itself=itself)
    for i, after in enumerate(ranks):
        for j, before in enumerate(ranks):
            assert found[i, j] == (before <= after if itself else before < after)


@settings(max_examples=40, deadline=None)
@given(order=st.integers(1, 7).flatmap(lambda n: st.permutations(range(n))), itself=st.booleans())
def test_a_permutation_is_the_order_in_which_positions_come(order, itself):
    found = dependencies(permutation=torch.tensor(order), itself=itself)
    for n, i in enumerate(order):
        seen = set(order[: n + 1] if itself else order[:n])
        assert {j for j in range(len(order)) if found[i, j]} == seen


@settings(max_examples=60, deadline=None)
@given(length=st.integers(1, 9), seed=st.integers(0, 9999), share=st.floats(0, 1), itself=st.booleans())
def test_a_graph_shows_each_position_its_ancestors(length, seed, share, itself):
    graph = random_graph(length, seed, share)
    found = dependencies(graph=graph, itself=itself)
    for i in range(length):
        expected = ancestors(graph.tolist(), i) | ({i} if itself else set())
        assert {j for j in range(length) if found[i, j]} == expected


@settings(max_examples=60, deadline=None)
@given(length=st.integers(2, 8), seed=st.integers(0, 9999), share=st.floats(0.0, 0.6))
def test_circles_are_refused_by_naming_a_true_one_and_nothing_else_is(length, seed, share):
    graph = torch.rand(length, length, generator=torch.Generator().manual_seed(seed)) < share
    graph &= ~torch.eye(length, dtype=torch.bool)
    circular = any(i in ancestors(graph.tolist(), i) for i in range(length))
    try:
        dependencies(graph=graph)
    except SaccadeError as error:
        positions = [int(p) for p in str(error).split("circle: ")[1].split(";")[0].split(" → ")]
        assert positions[0] == positions[-1]
        assert len(positions) > 2
        assert all(graph[i, j] for i, j in pairwise(positions))
        assert circular
    else:
        assert not circular


def test_a_chain_of_any_length_reaches_its_beginning():
    for length in (1, 2, 3, 64, 65, 100):
        chain = torch.ones(length, length, dtype=torch.bool).tril(-1) & ~torch.ones(length, length).tril(-2).bool()
        assert torch.equal(dependencies(graph=chain), causal(length, length))


def test_causal_is_the_order_from_left_to_right_and_a_prefix_is_one_rank():
    assert torch.equal(dependencies(ranks=torch.arange(5)), causal(5, 5))
    assert torch.equal(dependencies(graph=causal(5, 5)), causal(5, 5))
    assert torch.equal(dependencies(ranks=torch.tensor([[2, 2, 2, 3, 4]])), prefix(torch.tensor([3]), 5, 5))


def test_each_row_of_a_batch_has_its_own_order():
    graphs = torch.stack([random_graph(6, seed) for seed in range(4)])
    together = dependencies(graph=graphs)
    assert together.shape == (4, 1, 6, 6)
    for graph, mask in zip(graphs, together, strict=True):
        assert torch.equal(dependencies(graph=graph), mask[0])
    orders = torch.stack([torch.randperm(6) for _ in range(4)])
    assert torch.equal(dependencies(permutation=orders)[2, 0], dependencies(permutation=orders[2]))


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ({}, "0 orders; give one of"),
        ({"ranks": torch.arange(3), "permutation": torch.arange(3)}, "2 orders; give one of"),
        ({"permutation": torch.tensor([0, 2, 2])}, r"permutation=\[0, 2, 2\].*positions 0 to 2 once"),
        ({"graph": torch.ones(2, 3, dtype=torch.bool)}, r"shape \(2, 3\); give a boolean square"),
        ({"graph": torch.zeros(3, 3)}, "float32.*give a boolean square"),
    ],
)
def test_what_is_no_order_is_refused_with_the_remedy(order, message):
    with pytest.raises(SaccadeError, match=message):
        dependencies(**order)


def test_the_row_of_a_batch_with_a_circle_is_named():
    graphs = torch.zeros(3, 4, 4, dtype=torch.bool)
    graphs[1, 0, 2] = graphs[1, 2, 3] = graphs[1, 3, 0] = True
    with pytest.raises(SaccadeError, match=r"0 → 2 → 3 → 0 \(in row 1 of the batch\)"):
        dependencies(graph=graphs)


def reached(mask: torch.Tensor, layers: int) -> torch.Tensor:
    """By gradient: which inputs each output of a stack of self-attention layers depends on, (L, L)."""
    torch.manual_seed(0)
    L = mask.size(-1)
    stack = [SelfAttention(Heads(12, 3, 3), 0.0).double() for _ in range(layers)]
    x = torch.randn(1, L, 12, dtype=torch.float64, requires_grad=True)
    y = x
    for layer in stack:
        y = layer(y, mask).context
    rows = [torch.autograd.grad(y[0, i].sum(), x, retain_graph=True)[0][0].abs().sum(-1) for i in range(L)]
    return torch.stack(rows) > 1e-13  # a softmax over one key leaves rounding


@pytest.mark.parametrize("layers", [1, 4])
@settings(max_examples=12, deadline=None)
@given(length=st.integers(2, 7), seed=st.integers(0, 9999), kind=st.sampled_from(["ranks", "permutation", "graph"]))
def test_however_many_layers_an_output_depends_on_just_the_inputs_it_may_see(layers, length, seed, kind):
    generator = torch.Generator().manual_seed(seed)
    order = {
        "ranks": torch.randint(0, 4, (length,), generator=generator),
        "permutation": torch.randperm(length, generator=generator),
        "graph": random_graph(length, seed),
    }[kind]
    mask = dependencies(**{kind: order})
    assert torch.equal(reached(mask, layers), mask)


def test_the_bare_edges_of_a_graph_reach_as_far_as_there_are_layers_and_its_closure_all_at_once():
    chain = torch.eye(6, dtype=torch.bool) | torch.eye(6, dtype=torch.bool).roll(1, 0).tril()
    assert torch.equal(reached(chain, 2), causal(6, 6) & ~torch.ones(6, 6).tril(-3).bool())
    assert torch.equal(reached(dependencies(graph=chain), 2), causal(6, 6))


@settings(max_examples=12, deadline=None)
@given(length=st.integers(2, 7), seed=st.integers(0, 9999))
def test_a_layer_that_may_not_see_itself_does_not(length, seed):
    mask = dependencies(graph=random_graph(length, seed), itself=False)
    found = reached(mask, 1)
    # What is asked comes from the position itself; what is answered does not: with one key or none, it has no say.
    own = torch.eye(length, dtype=torch.bool)
    assert torch.equal(found & ~own, mask)
    assert not (found & own)[mask.sum(-1) < 2].any()
