"""The weights of any head, exactly, in bounded memory: encoder, decoder and cross-attention, of every mechanism.

The model runs as ever, with its fused kernels. On the way each attention tells what it was asked
(`attention.watching`); weights are computed from that for the heads that are wanted and no others, so many rows at a
time. An attention is known by its score, which is its own.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from saccade.analysis.mechanisms import Place, heads_of, places
from saccade.attention.scores import Additive
from saccade.attention.watching import HOPS, Asked, watching
from saccade.data.batching import Batch
from saccade.errors import SaccadeError
from saccade.looking.look import STACKS
from saccade.models.heads import HeadName, Site, sites
from saccade.models.protocol import EncoderDecoder

CELLS = 2**22  # scores that are computed at once, those of a step's inside counted: 16 MB in single precision


class Wanted(NamedTuple):
    """Of which stacks, layers and heads weights are wanted, layers and heads counted from 0; None: of all."""

    stacks: Collection[str] | None = None
    layers: Collection[int] | None = None
    heads: Collection[int] | None = None

    def has(self, name: HeadName) -> bool:
        """Whether this head is wanted."""
        each = zip(self, name, strict=True)
        return all(chosen is None or one in chosen for chosen, one in each)


ALL = Wanted()


@contextmanager
def capturing(
    model: EncoderDecoder, mask: Tensor, wanted: Wanted = ALL, device: torch.device | str | None = None
) -> Iterator[dict[HeadName, Tensor]]:
    """Weights of what the model reads and writes inside, whole targets without a cache; filled when it is over.

    (B, rows, columns) a head. Rows of `decoder` and `cross` are the steps of the decoder, columns of `decoder` its
    inputs. `mask` (B, S) says which places of the sources are real; `device`: where to put the weights.

    A classifier's hops are heads of `cross` with one row, which is every step's. Where a tape (LSTMN) begins with where
    the encoder ended, that entry is counted to the first input's.
    """
    caught = _Caught(model, mask, wanted, device)
    found: dict[HeadName, Tensor] = {}
    with watching(caught):
        yield found
    found.update(caught.found())


@torch.inference_mode()
def all_weights(model: EncoderDecoder, batch: Batch, wanted: Wanted = ALL) -> dict[Site, Tensor]:
    """(B, H, Q, K) for each attention, for pairs that are read and written as they are."""
    with capturing(model, batch.source_mask, wanted) as found:
        model(batch.source, batch.source_mask, batch.inputs)
    return _by_site(found)


@torch.inference_mode()
def encoder_weights(model: EncoderDecoder, source: Tensor, mask: Tensor) -> dict[Site, Tensor]:
    """The encoder's alone, for sources (B, S)."""
    with capturing(model, mask) as found:
        model.encode(source, mask)
    return _by_site(found)


def check_wanted(model: EncoderDecoder, wanted: Wanted) -> None:
    """Refuse by name a layer or a head that there is not."""
    everywhere = heads_of(model)
    if not everywhere:
        return
    there = {site: heads for site, heads in everywhere.items() if wanted.stacks is None or site.stack in wanted.stacks}
    if not there:
        stacks = [stack for stack in STACKS if any(site.stack == stack for site in everywhere)]
        raise SaccadeError(
            f"stack {', '.join(wanted.stacks or ())}: the model attends in {', '.join(stacks)} alone; choose of these"
        )
    layers = max(site.layer for site in there) + 1
    for layer in wanted.layers or ():
        if not 0 <= layer < layers:
            raise SaccadeError(f"layer {layer + 1}: the model has layers 1 to {layers} that attend; choose one of them")
    heads = max(heads for site, heads in there.items() if wanted.layers is None or site.layer in wanted.layers)
    for head in wanted.heads or ():
        if not 0 <= head < heads:
            raise SaccadeError(f"head {head + 1}: these layers have heads 1 to {heads}; choose one of them")


class _Caught:
    """Is told what each attention was asked, and keeps the weights that are wanted."""

    def __init__(self, model: EncoderDecoder, mask: Tensor, wanted: Wanted, device: torch.device | str | None) -> None:
        self.places = places(model)
        self.wanted, self.device = wanted, device
        self.sources = mask.size(1)
        self.order = None if bool(mask.all()) else _places_in_one_sequence(mask)
        self.rows: dict[HeadName, list[Tensor]] = {}  # a call at a time: one, or one a step
        self.place_of: dict[HeadName, Place] = {}

    def __call__(self, asked: Asked) -> None:
        place = self.places.get(id(asked.score.origin))
        if place is None:
            return
        if place.looks == HOPS:  # the queries are the heads
            asked = asked._replace(queries=asked.queries.transpose(1, 2))
        for part in place.parts(asked.shape[2], asked.shape[3], self.sources):
            names = [HeadName(*part.site, head) for head in range(asked.shape[1])]
            heads = [name.head for name in names if self.wanted.has(name)]
            for head, weights in _weights(asked, heads, part.rows, part.columns, self.device):
                if place.one_sequence and self.order is not None:
                    weights = _in_order(weights, self.order, part.site.stack)
                self.rows.setdefault(names[head], []).append(weights)
                self.place_of[names[head]] = place

    def found(self) -> dict[HeadName, Tensor]:
        return {name: self.place_of[name].finish(_joined(calls)) for name, calls in sorted(self.rows.items(), key=_key)}


def _weights(
    asked: Asked, heads: Sequence[int], rows: slice, columns: slice, device: torch.device | str | None
) -> Iterator[tuple[int, Tensor]]:
    """(B, rows, columns) of each head, of which no more is ever computed at once than `CELLS` or a row."""
    B, _, _, K = asked.shape
    inside = asked.score.v.numel() if isinstance(asked.score, Additive) else 1
    a_row, Q = max(1, B * K * inside), rows.stop - rows.start
    together = CELLS // max(1, a_row * Q)
    for start in range(0, len(heads), together) if together else ():
        group = heads[start : start + together]
        weights = asked.weights(group, rows)[..., columns]
        for number, head in enumerate(group):
            yield head, weights[:, number].to(device or weights.device)
    if together:
        return
    block = max(1, CELLS // a_row)
    for head in heads:
        whole: Tensor | None = None
        for start in range(rows.start, rows.stop, block):
            part = asked.weights([head], slice(start, min(start + block, rows.stop)))[:, 0, :, columns]
            if whole is None:
                whole = part.new_empty(B, Q, part.size(2), device=device or part.device)
            whole[:, start - rows.start : start - rows.start + part.size(1)] = part
        assert whole is not None
        yield head, whole


def _joined(calls: Sequence[Tensor]) -> Tensor:
    """The rows of all calls, one below the other; what a call did not have before it has weight 0."""
    if len(calls) == 1:
        return calls[0]
    widest = max(part.size(2) for part in calls)
    return torch.cat([F.pad(part, (0, widest - part.size(2))) for part in calls], dim=1)


def _places_in_one_sequence(mask: Tensor) -> Tensor:
    """(B, S): the column in which each place of the source stands where padding was moved to the left."""
    return mask.to(torch.uint8).argsort(dim=1, stable=True).argsort(dim=1)


def _in_order(weights: Tensor, order: Tensor, stack: str) -> Tensor:
    """With each place of the source where it came."""
    order = order.to(weights.device)
    if stack in ("cross", "encoder"):
        weights = weights.gather(2, order.unsqueeze(1).expand_as(weights))
    if stack == "encoder":
        weights = weights.gather(1, order.unsqueeze(2).expand_as(weights))
    return weights


def _by_site(found: dict[HeadName, Tensor]) -> dict[Site, Tensor]:
    heads: dict[Site, list[Tensor]] = {}
    for name, weights in found.items():
        heads.setdefault(name.site, []).append(weights)
    return {site: torch.stack(each, dim=1) for site, each in heads.items()}


def _key(item: tuple[HeadName, list[Tensor]]) -> tuple[int, int, int]:
    stack, layer, head = item[0]
    return STACKS.index(stack), layer, head


@contextmanager
def silenced(model: EncoderDecoder, heads: Sequence[HeadName]) -> Iterator[None]:
    """Some heads say nothing: their columns of the output matrix are zero for as long as this lasts.

    It holds for every way of running the model, search and captured steps too; the weights come back as they were.
    """
    found = sites(model)
    columns = []
    for name in heads:
        module = found[name.site]
        width = module.shape.head_width
        # Detached, not `.data`: a packed copy of the weights must learn that they changed.
        columns.append(module.output.weight.detach()[:, name.head * width : (name.head + 1) * width])
    kept = [column.clone() for column in columns]
    with torch.no_grad():
        for column in columns:
            column.zero_()
    try:
        yield
    finally:
        with torch.no_grad():
            for column, before in zip(columns, kept, strict=True):
                column.copy_(before)
