"""The weights of every head under teacher forcing: encoder, decoder and cross-attention alike.

The model runs as ever; on the way each attention is asked once more, with the same inputs, for its weights.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from saccade.attention.multihead import CrossAttention
from saccade.data.batching import Batch
from saccade.models.heads import HeadName, Site, sites
from saccade.models.protocol import EncoderDecoder


@torch.inference_mode()
def all_weights(model: EncoderDecoder, batch: Batch) -> dict[Site, Tensor]:
    """(B, H, Q, K) for each attention, for pairs that are read and written as they are."""
    found: dict[Site, Tensor] = {}
    with _asking(model, found):
        model(batch.source, batch.source_mask, batch.inputs)
    return found


@torch.inference_mode()
def encoder_weights(model: EncoderDecoder, source: Tensor, mask: Tensor) -> dict[Site, Tensor]:
    """The encoder's alone, for sources (B, S)."""
    found: dict[Site, Tensor] = {}
    with _asking(model, found):
        model.encode(source, mask)
    return found


@contextmanager
def _asking(model: EncoderDecoder, found: dict[Site, Tensor]) -> Iterator[None]:
    handles = []
    for site, module in sites(model).items():

        def ask(module: nn.Module, inputs: tuple[Any, ...], site: Site = site) -> None:
            # Without a cache every attention is a function of its first inputs alone.
            count = 3 if isinstance(module, CrossAttention) else 2
            weights = module.forward(*inputs[:count], need_weights=True).weights
            assert weights is not None
            found[site] = weights

        handles.append(module.register_forward_pre_hook(ask))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


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
