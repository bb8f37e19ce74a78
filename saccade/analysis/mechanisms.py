"""Every attention of a model, whatever the mechanism: whose rows and columns its weights are.

| mechanism | stack | weights |
|---|---|---|
| Transformer | encoder, decoder, cross | each layer has its own |
| … of one sequence (decoder-only) | encoder, decoder, cross | three corners of one matrix a layer |
| Bahdanau, Luong, GNMT, LSTMN's fusion | cross | one head, a row a step |
| LSTMN's tapes | encoder, decoder | one head a layer, over what was read before |
| ConvS2S | cross | one head a block |
| language models that look back | decoder, cross | two halves of one matrix |
| structured self-attention (classifier) | cross | a head a hop, the same for every piece |
| Cho, Sutskever, RCTM, ByteNet, n-gram | | none |
"""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple, cast

from torch import Tensor, nn

from saccade.attention.watching import HOPS, MEMORY, PAST, TAPE, Looks
from saccade.generation.ensemble import Ensemble
from saccade.looking.look import CROSS, DECODER, ENCODER, STACKS
from saccade.models.heads import Site
from saccade.models.protocol import EncoderDecoder


class Part(NamedTuple):
    """Some of the rows and columns of an attention."""

    site: Site
    rows: slice
    columns: slice


class Place(NamedTuple):
    """An attention in its model."""

    site: Site
    heads: int
    looks: str  # at what: as `attention.watching` calls it
    one_sequence: bool = False  # source and target are rows and columns, one behind the other

    @property
    def stacks(self) -> tuple[str, ...]:
        """All that the weights are shared out to."""
        if self.one_sequence:
            return STACKS
        return (DECODER, CROSS) if self.looks == PAST else (self.site.stack,)

    def parts(self, Q: int, K: int, S: int) -> Iterator[Part]:
        """Of Q queries and K keys, where the sources have S places."""
        source, target = slice(0, S), slice(S, K)
        rows = {ENCODER: source, DECODER: target, CROSS: target}
        columns = {ENCODER: source, DECODER: target, CROSS: source}
        for stack in self.stacks:
            shared = self.one_sequence or self.looks == PAST
            yield Part(
                Site(stack, self.site.layer),
                rows[stack] if self.one_sequence else slice(0, Q),
                columns[stack] if shared else slice(0, K),
            )

    def finish(self, weights: Tensor) -> Tensor:
        """(B, rows, columns), all rows there: of a tape, a column for each input, also the last, which nobody reads."""
        if self.looks != TAPE:
            return weights
        short = weights.size(1) - weights.size(2)
        weights = nn.functional.pad(weights, (0, short))
        if self.site.stack == ENCODER:
            return weights
        # The first entry is where the encoder ended, entry i + 1 was written when input i was read.
        inputs = nn.functional.pad(weights[:, :, 1:], (0, 1))
        inputs[:, :, 0] += weights[:, :, 0]
        return inputs


def places(model: EncoderDecoder) -> dict[int, Place]:
    """By the identity of their scores. Layers of an ensemble are counted on from one model's deepest to the next."""
    found: dict[int, Place] = {}
    before = 0
    for member in model.members if isinstance(model, Ensemble) else [model]:
        own = list(_of(member))
        for score, place in own:
            found[id(score)] = place._replace(site=Site(place.site.stack, before + place.site.layer))
        before += max((place.site.layer + 1 for _, place in own), default=0)
    return found


def heads_of(model: EncoderDecoder) -> dict[Site, int]:
    """How many heads there are of each stack and layer."""
    found: dict[Site, int] = {}
    for place in places(model).values():
        found |= {Site(stack, place.site.layer): place.heads for stack in place.stacks}
    return found


def _of(model: EncoderDecoder) -> Iterator[tuple[object, Place]]:
    together = getattr(model.decoder, "one_sequence", False)
    layers: Counter[str] = Counter()
    for half_stack, half in ((ENCODER, model.encoder), (DECODER, model.decoder)):
        for module in half.modules():
            if not hasattr(module, "looks"):
                continue
            attention = cast(Looks, module)
            stack = CROSS if attention.looks in (MEMORY, HOPS) else half_stack
            place = Place(Site(stack, layers[stack]), attention.heads, attention.looks, together)
            layers[stack] += 1
            yield attention.score, place
