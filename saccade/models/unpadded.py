"""The Transformer over sentences that lie one behind the other: the same layers, as one row of a batch.

Only attention has to know where a sentence ends, and it is told by spans in place of masks; positions are told token by
token. Layers are called through `call`, so that who trains can have them compiled.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from saccade.attention.positions import Places
from saccade.attention.relative import Rotary, Unaware
from saccade.attention.spans import Spans
from saccade.data.unpadded import UnpaddedBatch
from saccade.models.protocol import EncoderDecoder
from saccade.models.transformer import DecoderLayer, EncoderLayer, TransformerDecoder, TransformerEncoder

Call = Callable[..., Tensor]
WITHOUT_BIAS = (Unaware, Rotary)  # what relative positions say by a bias, the kernels do not know


def reads_unpadded(model: EncoderDecoder) -> bool:
    """Whether a model can go without padding."""
    if type(model.encoder) is not TransformerEncoder or type(model.decoder) is not TransformerDecoder:
        return False
    layers: list[Any] = [*model.encoder.layers, *model.decoder.layers]
    return all(type(layer.attention.relative) in WITHOUT_BIAS and not layer.recompute for layer in layers)


def head_widths(model: EncoderDecoder) -> set[int]:
    """How wide the heads are of a model that can go without padding."""
    layers: list[Any] = [*model.encoder.layers, *model.decoder.layers]  # type: ignore[misc]
    return {layer.attention.shape.head_width for layer in layers}


def plainly(work: Callable[..., Tensor], *inputs: Any) -> Tensor:
    """Do the work as it is written."""
    return work(*inputs)


def hidden_of(model: EncoderDecoder, batch: UnpaddedBatch, call: Call = plainly) -> Tensor:
    """Teacher forcing: the decoder's states before the output matrix, (T, E)."""
    encoder, decoder = model.encoder, model.decoder
    assert isinstance(encoder, TransformerEncoder)
    assert isinstance(decoder, TransformerDecoder)
    source_places, target_places = batch.places
    x = call(_embedded, encoder.embedding, batch.tokens, source_places, batch.longest[0])
    turned = _before(source_places)
    for layer in encoder.layers:
        x = call(_encoded, layer, x, batch.within_source, turned)
    states = call(_normed, encoder.norm, x)
    y = call(_embedded, decoder.embedding, batch.inputs, target_places, batch.longest[1])
    within, across, turned = batch.within_target, batch.across, _before(target_places)
    for layer in decoder.layers:
        y = call(_decoded, layer, y, states, within, across, turned)
    return call(_normed, decoder.norm, y).squeeze(0)


def _before(places: Tensor) -> Tensor:
    """What the position of a row in its sentence is, less its number among all rows: (1, 1, N)."""
    return (places - torch.arange(places.size(1), device=places.device)).unsqueeze(1)


def _embedded(embedding: nn.Module, tokens: Tensor, places: Tensor, bound: int) -> Tensor:
    return embedding(tokens, places=Places(places, bound))


def _encoded(layer: EncoderLayer, x: Tensor, within: Spans, turned: Tensor) -> Tensor:
    return layer(x, within, turned)


def _decoded(layer: DecoderLayer, y: Tensor, states: Tensor, within: Spans, across: Spans, turned: Tensor) -> Tensor:
    return layer(y, within, layer.cross.project(states), across, None, turned, False)[0]


def _normed(norm: nn.Module, x: Tensor) -> Tensor:
    return norm(x)
