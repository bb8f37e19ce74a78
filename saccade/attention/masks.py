"""Masks: boolean, True means "may attend", shaped to broadcast to (B, H, Q, K)."""

import torch
from torch import Tensor

from saccade.errors import SaccadeError


def causal(queries: int, keys: int, device: torch.device | None = None) -> Tensor:
    """Query i, the (keys - queries + i)-th position, sees itself and what came before: (Q, K)."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


def before(queries: Tensor, keys: Tensor, window: int | None = None) -> Tensor:
    """From the places of queries (B, Q) and keys (B, K): a query sees the `window` places before its own, itself not
    among them; None: all before: (B, 1, Q, K)."""
    distance = queries.unsqueeze(2) - keys.unsqueeze(1)
    mask = distance > 0 if window is None else (distance > 0) & (distance <= window)
    return mask.unsqueeze(1)


def over_keys(mask: Tensor) -> Tensor:
    """A (B, K) mask of real tokens, for every head and every query: (B, 1, 1, K)."""
    return mask[:, None, None, :]


def prefix(lengths: Tensor, queries: int, keys: int) -> Tensor:
    """The first P_b positions of row b are seen by all, the rest causally: (B, 1, Q, K).

    M_bij = j < P_b  or  j ≤ keys - queries + i   (the prefix language model of Raffel et al. 2020, 3.2.1)
    """
    inside = torch.arange(keys, device=lengths.device) < lengths.unsqueeze(1)  # (B, K)
    return over_keys(inside) | causal(queries, keys, lengths.device)


def dependencies(
    *,
    ranks: Tensor | None = None,
    permutation: Tensor | None = None,
    graph: Tensor | None = None,
    itself: bool = True,
) -> Tensor:
    """Who sees whom, for any order in which positions depend on each other. Give one of:

    ranks (…, L)         M_ij = r_j ≤ r_i: positions of one rank see each other
    permutation (…, L)   the positions in the order they come, π_1 π_2 …: r_{π_n} = n   (Yang et al. 2019, eq. 3)
    graph (…, L, L)      i depends on j where True; M = I ∪ G ∪ G² ∪ …: position i sees all its ancestors. A circle is
                         refused. The diagonal is not read.

    With `itself` off, r_j < r_i and M = G ∪ G² ∪ …: a position does not see itself, nor its equals; one without
    ancestors sees nothing.

    All of these are transitive, and with `itself` reflexive: M M = M. However many layers are stacked under the same M,
    output i depends on just the inputs that M_i allows.

    One for all is (L, L); one for each row of a batch, (B, 1, L, L).
    """
    given = [part for part in (ranks, permutation, graph) if part is not None]
    if len(given) != 1:
        raise SaccadeError(f"dependencies() was given {len(given)} orders; give one of ranks, permutation and graph")
    if graph is not None:
        reached = _closure(_checked_graph(graph))
        own = torch.eye(graph.size(-1), dtype=torch.bool, device=graph.device)
        mask = reached if itself else reached & ~own
    else:
        rank = ranks if ranks is not None else _ranks_of(given[0])
        before, after = rank.unsqueeze(-2), rank.unsqueeze(-1)
        mask = before <= after if itself else before < after
    return mask.unsqueeze(1) if mask.dim() == 3 else mask


def _ranks_of(permutation: Tensor) -> Tensor:
    """The inverse of a permutation: when each position comes."""
    places = torch.arange(permutation.size(-1), device=permutation.device)
    in_order, ranks = permutation.sort(-1)
    if not torch.equal(in_order, places.expand_as(in_order)):
        raise SaccadeError(
            f"permutation={permutation.tolist()} does not name each of the positions 0 to {len(places) - 1} once; "
            "name every one, or give ranks"
        )
    return ranks


def _checked_graph(graph: Tensor) -> Tensor:
    if graph.dim() < 2 or graph.size(-1) != graph.size(-2) or graph.dtype != torch.bool:
        raise SaccadeError(
            f"graph is {graph.dtype} of shape {tuple(graph.shape)}; give a boolean square, True at [i, j] where "
            "position i depends on position j"
        )
    return graph


def _closure(graph: Tensor) -> Tensor:
    """I ∪ G ∪ G² ∪ … by squaring: I ∪ G knows paths of one edge, its square those of two, …"""
    L = graph.size(-1)
    own = torch.eye(L, dtype=torch.bool, device=graph.device)
    reached = graph | own
    for _ in range(max(L - 1, 0).bit_length()):
        reached = (reached.float() @ reached.float()) > 0
    if (reached & reached.mT & ~own).any():
        raise SaccadeError(_circle(graph, reached & reached.mT & ~own))
    return reached


def _circle(graph: Tensor, mutual: Tensor) -> str:
    """The positions of a shortest circle through the first position that is in one."""
    where = mutual.nonzero()[0].tolist()
    row, start = where[:-2], where[-2]
    edges = graph[tuple(row)]
    came_from: dict[int, int] = {}
    newest = [start]
    while start not in came_from:
        further = []
        for i in newest:
            for j in edges[i].nonzero().flatten().tolist():
                if i != j and j not in came_from:
                    came_from[j] = i
                    further.append(j)
        newest = further
    path = [start, came_from[start]]
    while path[-1] != start:
        path.append(came_from[path[-1]])
    names = " → ".join(str(position) for position in reversed(path))
    return (
        f"positions depend on each other in a circle: {names}{f' (in row {row[0]} of the batch)' if row else ''}; "
        "take one of these edges out"
    )
