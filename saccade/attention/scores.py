"""Score functions: how well a key answers a query.

Every score is made with the same three widths, so that one can stand in for another. It is called with queries and
*prepared* keys: `prepare` does, once for a source sentence, whatever depends on the keys alone (Bahdanau's U h_j does
not change while the target is written). A new score is a class with `forward` and an entry in `SCORES`.
"""

from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from saccade.errors import SaccadeError


class Score(Protocol):
    """Anything that scores queries (B, H, Q, ·) against prepared keys (B, H, K, ·) as (B, H, Q, K)."""

    def prepare(self, keys: Tensor) -> Tensor: ...

    def at(self, position: int) -> "Score":
        """The score when the first of its queries stands at target position `position`."""

    def after(self, queries: int) -> "Score":
        """The score of the queries that are left when so many of the first are gone."""

    @property
    def origin(self) -> "Score":
        """The score that `at` was asked of: which attention this is."""

    def __call__(self, queries: Tensor, keys: Tensor) -> Tensor: ...


class ContentScore(nn.Module):
    """A score that looks at what queries and keys hold, not at where they stand. e_ij = score(s_i, h_j)."""

    def __init__(self, query_width: int, key_width: int, width: int) -> None:
        super().__init__()

    def prepare(self, keys: Tensor) -> Tensor:
        return keys

    def at(self, position: int) -> Score:
        return self

    def after(self, queries: int) -> Score:
        return self

    @property
    def origin(self) -> Score:
        return self


class Dot(ContentScore):
    """e = sᵀ h   (Luong et al. 2015, eq. 8, "dot")."""

    def __init__(self, query_width: int = 0, key_width: int = 0, width: int = 0) -> None:
        super().__init__(query_width, key_width, width)
        if query_width != key_width:
            raise SaccadeError(
                f"model.score=dot needs states of one width, but the decoder's have {query_width} and the memory's "
                f"{key_width}; use model.score=bilinear or make the widths equal"
            )

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        return queries @ keys.mT


class ScaledDot(Dot):
    """e = sᵀ h / √D   (Vaswani et al. 2017, eq. 1): the variance of a dot product grows with its width D."""

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        return queries @ keys.mT * queries.size(-1) ** -0.5


class Bilinear(ContentScore):
    """e = sᵀ W h   (Luong et al. 2015, eq. 8, "general")."""

    def __init__(self, query_width: int, key_width: int, width: int) -> None:
        super().__init__(query_width, key_width, width)
        self.W = nn.Linear(key_width, query_width, bias=False)
        nn.init.xavier_uniform_(self.W.weight)

    def prepare(self, keys: Tensor) -> Tensor:
        return self.W(keys)

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        return queries @ keys.mT


class LowRank(ContentScore):
    """e = (U s)ᵀ (V h): bilinear with W = Uᵀ V of reduced rank (as in Kim et al. 2017, eq. 2), a quarter of the
    attention's width."""

    def __init__(self, query_width: int, key_width: int, width: int) -> None:
        super().__init__(query_width, key_width, width)
        self.U = nn.Linear(query_width, max(1, width // 4), bias=False)
        self.V = nn.Linear(key_width, max(1, width // 4), bias=False)
        nn.init.xavier_uniform_(self.U.weight)
        nn.init.xavier_uniform_(self.V.weight)

    def prepare(self, keys: Tensor) -> Tensor:
        return self.V(keys)

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        return self.U(queries) @ keys.mT


class Additive(ContentScore):
    """e = vᵀ tanh(W s + U h)   (Bahdanau et al. 2015, A.1.2), with U h prepared once a sentence."""

    def __init__(self, query_width: int, key_width: int, width: int) -> None:
        super().__init__(query_width, key_width, width)
        self.W = nn.Linear(query_width, width, bias=False)
        self.U = nn.Linear(key_width, width, bias=False)
        self.v = nn.Parameter(torch.empty(width))
        # B.1 of the paper draws W and U small and sets v to zero: the first looks are even.
        nn.init.normal_(self.W.weight, std=0.001)
        nn.init.normal_(self.U.weight, std=0.001)
        nn.init.zeros_(self.v)

    def prepare(self, keys: Tensor) -> Tensor:
        return self.U(keys)

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        summed = self.W(queries).unsqueeze(-2) + keys.unsqueeze(-3)  # (B, H, Q, K, ·)
        return summed.tanh_() @ self.v  # in place: it is the largest thing a step makes


class Concat(Additive):
    """e = vᵀ tanh(W [s; h])   (Luong et al. 2015, eq. 8, "concat").

    [W_s W_h] [s; h] = W_s s + W_h h: Bahdanau's score in other letters, but drawn as one ordinary matrix, so that the
    first looks are uneven.
    """

    def __init__(self, query_width: int, key_width: int, width: int) -> None:
        super().__init__(query_width, key_width, width)
        whole = nn.init.xavier_uniform_(torch.empty(width, query_width + key_width))
        with torch.no_grad():
            self.W.weight.copy_(whole[:, :query_width])
            self.U.weight.copy_(whole[:, query_width:])
        nn.init.normal_(self.v, std=width**-0.5)


class Location(ContentScore):
    """e_j = (W s)_j   (Luong et al. 2015, eq. 9): the state alone says which place to look at.

    As in the paper, a sentence shorter than W has rows uses the first of them, and words beyond the last are ignored.
    """

    PLACES = 128

    def __init__(self, query_width: int, key_width: int, width: int) -> None:
        super().__init__(query_width, key_width, width)
        self.W = nn.Linear(query_width, self.PLACES, bias=False)
        nn.init.xavier_uniform_(self.W.weight)

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        K = keys.size(-2)
        places = self.W(queries)[..., :K]
        return F.pad(places, (0, K - places.size(-1)), value=torch.finfo(places.dtype).min)


class Cosine(ContentScore):
    """e = cos(s, W h) / τ   (Graves et al. 2014, eq. 6, with a sharpness 1/τ), τ learned from 0.1 on."""

    def __init__(self, query_width: int, key_width: int, width: int) -> None:
        super().__init__(query_width, key_width, width)
        self.W = nn.Linear(key_width, query_width, bias=False)
        nn.init.xavier_uniform_(self.W.weight)
        self.log_temperature = nn.Parameter(torch.tensor(0.1).log())

    def prepare(self, keys: Tensor) -> Tensor:
        return F.normalize(self.W(keys), dim=-1)

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        return F.normalize(queries, dim=-1) @ keys.mT / self.log_temperature.exp()


class Diagonal(ContentScore):
    """e_ij = -(i - j)² / 2: word i of the target looks at word i of the source, whatever they are.

    Nothing is learned: the hard-coded alignment that attention replaced, as a baseline.
    """

    def __init__(self, query_width: int = 0, key_width: int = 0, width: int = 0) -> None:
        super().__init__(query_width, key_width, width)
        self.position = 0
        self._origin: tuple[Score, ...] = (self,)  # in a tuple, which torch does not take for a part of it

    def at(self, position: int) -> Score:
        moved = Diagonal()
        moved.position, moved._origin = position, self._origin
        return moved

    def after(self, queries: int) -> Score:
        return self.at(self.position + queries)

    @property
    def origin(self) -> Score:
        return self._origin[0]

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        i = self.position + torch.arange(queries.size(-2), device=keys.device, dtype=queries.dtype)
        j = torch.arange(keys.size(-2), device=keys.device, dtype=queries.dtype)
        return (-((i.unsqueeze(1) - j) ** 2) / 2).expand(*queries.shape[:-1], -1)


SCORES: dict[str, Callable[..., Score]] = {
    "dot": Dot,
    "scaled-dot": ScaledDot,
    "bilinear": Bilinear,
    "low-rank": LowRank,
    "additive": Additive,
    "concat": Concat,
    "location": Location,
    "cosine": Cosine,
    "diagonal": Diagonal,
}
