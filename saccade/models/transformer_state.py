"""What a Transformer's decoder knows between two steps: by sentence, with the rows of a beam sharing what they can."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from saccade.attention.multihead import KeyValue, Step, own_cells
from saccade.attention.positions import Places
from saccade.models.lean import Absorbed, Lean, Looks


class Seen(NamedTuple):
    """What a step that is captured may look at, as numbers to be added to the scores: 0 or -∞."""

    cells: Tensor  # (1, 1, 1, capacity), the same for all sentences, or each row of a beam's own, see `Step.over_cells`
    memory: Tensor  # (N, 1, 1, S)


@dataclass(frozen=True)
class TransformerState:
    """The memory's keys and values and the target's so far (in storage that is filled from the left), by sentence.

    A sentence has the `size` rows of a beam. They share its memory, and its storage as `multihead.Step` tells. All
    sentences stand at the same `position` of the storage; one that came later has its first cells at `first`.
    """

    memory: tuple[KeyValue, ...]  # one a layer, (N, H, S, D) each
    memory_mask: Tensor  # (N, 1, 1, S)
    caches: tuple[KeyValue, ...] | None  # one a layer; None: the whole target comes in one call
    position: int | Tensor  # a tensor where the step is captured
    size: int = 1
    path: Tensor | None = None  # (N, size, capacity): whose cell is a row's own at each position; None: size is 1
    first: Tensor | None = None  # (N,); None: 0
    padded: bool = True  # whether the memory may hold padding: what is known to have none needs no mask
    lean: Lean | None = None  # the layers' steps in fewer calls, where this machine and the model allow
    absorbed: tuple[Absorbed | None, ...] | None = None  # one a layer: of a sentence by itself, for `lean`
    numbers: Seen | None = None  # what the masks say, kept by who replays a captured step, for `lean`

    @property
    def seen(self) -> Tensor | None:
        """What may be looked at of the memory; None: everything."""
        return self.memory_mask if self.padded else None

    @property
    def filled(self) -> int:
        assert isinstance(self.position, int)
        return self.position

    @property
    def firsts(self) -> Tensor:
        """(N,)"""
        mask = self.memory_mask
        return torch.zeros(mask.size(0), dtype=torch.long, device=mask.device) if self.first is None else self.first

    @property
    def capacity(self) -> int:
        assert self.caches is not None
        return self.caches[0].keys.size(2) // self.size

    def step(self) -> Step:
        """The next position."""
        if isinstance(self.position, Tensor):
            return Step(self.position, self.capacity, self.size, self.path, self.first)
        read = self.position + 1
        path = None if self.path is None else self.path[:, :, :read]
        return Step(self.position, read, self.size, path, self.first)

    def looks(self, at: Step) -> tuple[Looks, Looks]:
        """What the rows of a step may look at, of the cells and of the memory."""
        if self.numbers is None:
            return Looks(at.over_cells), Looks(self.seen)
        return Looks(None, self.numbers.cells), Looks(None, self.numbers.memory)

    def after(self, T: int) -> "TransformerState":
        """T tokens later; where the step is captured, who replays it counts them."""
        return self if isinstance(self.position, Tensor) else replace(self, position=self.position + T)

    def places(self, T: int) -> Places | None:
        """Where the next T tokens of each row stand, if not all alike."""
        if self.first is None and isinstance(self.position, int):
            return None
        if isinstance(self.position, Tensor):
            bound, start = self.capacity, self.position.view(1)
        else:
            bound, start = self.position + T, None
        if self.first is not None:
            start = (self.position - self.first).clamp(min=0).repeat_interleave(self.size)
        assert start is not None
        if T == 1:
            return Places(start.unsqueeze(1), bound)
        return Places(start.unsqueeze(1) + torch.arange(T, device=start.device), bound)

    def select(self, indices: Tensor) -> "TransformerState":
        if self.size == 1:
            return self.keep(indices)
        assert self.caches is not None
        assert self.path is not None
        sentences, read = indices // self.size, self.path[:, :, : self.filled]
        caches = []
        for cache in self.caches:
            own = [own_cells(part[:, :, : self.filled * self.size], read).index_select(0, indices) for part in cache]
            caches.append(KeyValue(*(_padded(part, 0, self.capacity) for part in own)))
        return TransformerState(
            tuple(layer.select(sentences) for layer in self.memory),
            self.memory_mask.index_select(0, sentences),
            tuple(caches),
            self.position,
            first=None if self.first is None else self.first.index_select(0, sentences),
            padded=self.padded,
            lean=self.lean,
            absorbed=self.absorbed if indices.numel() == 1 else None,
        )

    def beams(self, size: int) -> "TransformerState":
        assert self.size == 1
        assert self.caches is not None
        if size == 1:
            return self
        N, filled = self.memory_mask.size(0), self.filled
        caches = []
        for cache in self.caches:
            new = KeyValue(*(part.new_empty(*part.shape[:2], self.capacity * size, part.size(3)) for part in cache))
            for cells, part in zip(new, cache, strict=True):
                cells[:, :, : filled * size] = 0.0  # those that are nobody's are masked, but must be numbers
                cells[:, :, : filled * size : size] = part[:, :, :filled]
            caches.append(new)
        path = _rows(N, size, self.capacity, self.memory_mask.device)
        path[:, :, :filled] = 0
        return replace(self, caches=tuple(caches), size=size, path=path)

    def follow(self, parents: Tensor) -> "TransformerState":
        if self.path is None:
            return self
        N, size, capacity = self.path.shape
        beams = (parents % size).view(N, size, 1).expand(-1, -1, capacity)
        path = self.path.gather(1, beams)
        path[:, :, self.position :] = torch.arange(size, device=path.device).view(1, -1, 1)
        return replace(self, path=path)

    def within(self, window: int) -> "TransformerState":
        """The same storage, of which the first `window` positions are in use."""
        assert self.caches is not None
        return replace(
            self,
            caches=tuple(cache.up_to(window * self.size) for cache in self.caches),
            path=None if self.path is None else self.path[:, :, :window],
            numbers=self.numbers and self.numbers._replace(cells=self.numbers.cells[..., : window * self.size]),
        )

    def keep(self, sentences: Tensor) -> "TransformerState":
        filled = self.filled * self.size
        return replace(
            self,
            memory=tuple(layer.select(sentences) for layer in self.memory),
            memory_mask=self.memory_mask.index_select(0, sentences),
            caches=self.caches and tuple(cache.select_filled(sentences, filled) for cache in self.caches),
            path=None if self.path is None else self.path.index_select(0, sentences),
            first=None if self.first is None else self.first.index_select(0, sentences),
            absorbed=self.absorbed if sentences.numel() == 1 else None,
        )

    def join(self, other: "TransformerState") -> "TransformerState":
        assert self.caches is not None
        assert other.caches is not None
        assert self.size == other.size
        both = (self, other)
        # Positions that no sentence uses any more go; those that came later move up to where the others stand.
        unused = [0 if state.first is None else int(state.first.min()) for state in both]
        position = max(state.filled - drop for state, drop in zip(both, unused, strict=True))
        capacity = position + max(state.capacity - state.filled for state in both)
        shifts = [position - state.filled for state in both]
        S = max(state.memory_mask.size(3) for state in both)
        first = torch.cat([state.firsts + shift for state, shift in zip(both, shifts, strict=True)])
        path = None
        if self.path is not None:
            path = _rows(first.numel(), self.size, capacity, first.device)
            path[:, :, :position] = torch.cat(
                [
                    _shifted(state.path[:, :, : state.filled], shift, 2)  # type: ignore[index]
                    for state, shift in zip(both, shifts, strict=True)
                ]
            )
        caches = []
        for pair in zip(self.caches, other.caches, strict=True):
            parts = []
            for mine, theirs in zip(*pair, strict=True):
                new = mine.new_empty(first.numel(), mine.size(1), capacity * self.size, mine.size(3))
                new[:, :, : position * self.size] = torch.cat(
                    [
                        _shifted(part[:, :, : state.filled * self.size], shift * self.size, 2)
                        for part, state, shift in zip((mine, theirs), both, shifts, strict=True)
                    ]
                )
                parts.append(new)
            caches.append(KeyValue(*parts))
        memory = tuple(
            KeyValue(
                *(torch.cat([F.pad(p, (0, 0, 0, S - p.size(2))) for p in parts]) for parts in zip(*pair, strict=True))
            )
            for pair in zip(self.memory, other.memory, strict=True)
        )
        mask = torch.cat([F.pad(state.memory_mask, (0, S - state.memory_mask.size(3))) for state in both])
        return TransformerState(memory, mask, tuple(caches), position, self.size, path, first, lean=self.lean)


def _rows(N: int, size: int, capacity: int, device: torch.device) -> Tensor:
    """A path on which every row keeps to its own cells, (N, size, capacity)."""
    return torch.arange(size, device=device).view(1, -1, 1).repeat(N, 1, capacity)


def _padded(part: Tensor, before: int, length: int) -> Tensor:
    """(B, H, L, D) with zeros around, to a length."""
    return F.pad(part, (0, 0, before, length - before - part.size(2)))


def _shifted(part: Tensor, by: int, dim: int) -> Tensor:
    """Moved up along an axis, zeros first; or down, and the first are lost."""
    if by <= 0:
        return part.narrow(dim, -by, part.size(dim) + by)
    shape = list(part.shape)
    shape[dim] = by
    return torch.cat([part.new_zeros(shape), part], dim)
