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

from collections.abc import Iterator
from typing import NamedTuple

from torch import Tensor, nn

from saccade.generation.ensemble import Ensemble
from saccade.models.classifier import SentenceMatrix
from saccade.models.conv import ConvBlock
from saccade.models.decoder_only import DecoderOnly
from saccade.models.heads import Site, sites
from saccade.models.lm import Attentive, LMDecoder
from saccade.models.lstmn import LSTMNLayer
from saccade.models.protocol import EncoderDecoder
from saccade.models.rnn import Glimpse


class Part(NamedTuple):
    """Some of the rows and columns of an attention."""

    site: Site
    rows: slice
    columns: slice


class Place(NamedTuple):
    """An attention in its model."""

    site: Site
    heads: int
    one_sequence: bool = False  # source and target are rows and columns, one behind the other
    looks_back: bool = False  # … columns alone: rows are the target's
    tape: bool = False  # columns are what was written before, one more a step
    hops: bool = False  # queries are heads

    @property
    def stacks(self) -> tuple[str, ...]:
        """All that the weights are shared out to."""
        if self.one_sequence:
            return "encoder", "decoder", "cross"
        return ("decoder", "cross") if self.looks_back else (self.site.stack,)

    def parts(self, Q: int, K: int, S: int) -> Iterator[Part]:
        """Of Q queries and K keys, where the sources have S places."""
        source, target = slice(0, S), slice(S, K)
        rows = {"encoder": source, "decoder": target, "cross": target}
        columns = {"encoder": source, "decoder": target, "cross": source}
        for stack in self.stacks:
            shared = self.one_sequence or self.looks_back
            yield Part(
                Site(stack, self.site.layer),
                rows[stack] if self.one_sequence else slice(0, Q),
                columns[stack] if shared else slice(0, K),
            )

    def finish(self, weights: Tensor) -> Tensor:
        """(B, rows, columns), all rows there: of a tape, a column for each input, also the last, which nobody reads."""
        if not self.tape:
            return weights
        short = weights.size(1) - weights.size(2)
        weights = nn.functional.pad(weights, (0, short))
        if self.site.stack == "encoder":
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
    together = isinstance(model.decoder, DecoderOnly)
    for site, attention in sites(model).items():
        yield attention.score, Place(site, attention.shape.heads, one_sequence=together)
    for stack, half in (("encoder", model.encoder), ("decoder", model.decoder)):
        tapes = [module for module in half.modules() if isinstance(module, LSTMNLayer)]
        yield from ((layer.score, Place(Site(stack, i), 1, tape=True)) for i, layer in enumerate(tapes))
    blocks = [module for module in model.decoder.modules() if isinstance(module, ConvBlock)]
    yield from ((block.score, Place(Site("cross", i), 1)) for i, block in enumerate(blocks))
    for module in model.decoder.modules():
        if isinstance(module, Glimpse):
            yield module.score, Place(Site("cross", 0), 1)
    if isinstance(model.decoder, LMDecoder) and isinstance(model.decoder.look_back, Attentive):
        yield model.decoder.look_back.score, Place(Site("decoder", 0), 1, looks_back=True)
    if isinstance(model.encoder, SentenceMatrix):
        yield model.encoder.score, Place(Site("cross", 0), model.encoder.W_s2.size(0), hops=True)
