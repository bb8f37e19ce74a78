"""Transformers in plain PyTorch: of two stacks, and of one that reads source and target as one text."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.direct_common import Direct, Twins, of_columns, one_text
from saccade.data.tokenizers import PAD


class TransformerLayer(nn.Module):
    """Pre-norm; with a memory if it is a decoder's."""

    def __init__(self, shape: Any, crossed: bool) -> None:
        super().__init__()
        E, self.heads = shape.width, shape.heads
        self.norms = nn.ModuleList(nn.LayerNorm(E) for _ in range(3 if crossed else 2))
        self.qkv, self.out = nn.Linear(E, 3 * E), nn.Linear(E, E)
        if crossed:
            self.q, self.kv, self.cross_out = nn.Linear(E, E), nn.Linear(E, 2 * E), nn.Linear(E, E)
        self.inner, self.outer = nn.Linear(E, shape.feed_forward), nn.Linear(shape.feed_forward, E)
        self.dropout = nn.Dropout(shape.dropout)

    def split(self, x: Tensor, parts: int) -> tuple[Tensor, ...]:
        """(B, L, parts · E) → so many (B, H, L, D)."""
        return x.unflatten(-1, (parts, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)

    def forward(
        self, x: Tensor, mask: Tensor | None, memory: Tensor | None = None, memory_mask: Tensor | None = None
    ) -> Tensor:
        q, k, v = self.split(self.qkv(self.norms[0](x)), 3)
        found = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        x = x + self.dropout(self.out(found.transpose(1, 2).flatten(2)))
        if memory is not None:
            (q,), (k, v) = self.split(self.q(self.norms[1](x)), 1), self.split(self.kv(memory), 2)
            found = F.scaled_dot_product_attention(q, k, v, attn_mask=memory_mask)
            x = x + self.dropout(self.cross_out(found.transpose(1, 2).flatten(2)))
        return x + self.dropout(self.outer(F.relu(self.inner(self.norms[-1](x)))))


def layer_twins(mine: TransformerLayer, theirs: Any) -> Twins:
    yield mine.norms[0], theirs.around_attention.norm
    yield mine.norms[-1], theirs.around_feed_forward.norm
    yield mine.qkv, theirs.attention.query_key_value
    yield mine.out, theirs.attention.output
    yield mine.inner, theirs.feed_forward.inner
    yield mine.outer, theirs.feed_forward.outer
    if len(mine.norms) == 3:
        yield mine.norms[1], theirs.around_cross.norm
        yield mine.q, theirs.cross.query
        yield mine.kv, theirs.cross.key_value
        yield mine.cross_out, theirs.cross.output


class Placed(Direct):
    """Words are told where they stand, by waves."""

    positions: Tensor

    def __init__(self, shape: Any, vocabulary: int) -> None:
        super().__init__(vocabulary, shape.width, shape.dropout)
        frequencies = 10_000 ** -(torch.arange(0, shape.width, 2) / shape.width)
        angles = torch.arange(1024).unsqueeze(1) * frequencies
        self.register_buffer("positions", torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1))

    def embed(self, tokens: Tensor) -> Tensor:
        scaled = self.embedding(tokens) * self.embedding.embedding_dim**0.5
        return self.dropout(scaled + self.positions[: tokens.size(1)])


class Transformer(Placed):
    def __init__(self, shape: Any, vocabulary: int) -> None:
        super().__init__(shape, vocabulary)
        self.reading = nn.ModuleList(TransformerLayer(shape, crossed=False) for _ in range(shape.encoder_layers))
        self.writing = nn.ModuleList(TransformerLayer(shape, crossed=True) for _ in range(shape.decoder_layers))
        self.norms = nn.ModuleList(nn.LayerNorm(shape.width) for _ in range(2))

    def forward(self, source: Tensor, inputs: Tensor) -> Tensor:
        mask = (source != PAD)[:, None, None, :]
        x = self.embed(source)
        for layer in self.reading:
            x = layer(x, mask)
        memory, y = self.norms[0](x), self.embed(inputs)
        for layer in self.writing:
            y = layer(y, None, memory, mask)
        return self.norms[1](y)

    def twins(self, model: Any) -> Twins:
        layers = zip([*self.reading, *self.writing], [*model.encoder.layers, *model.decoder.layers], strict=True)
        for mine, theirs in layers:
            yield from layer_twins(mine, theirs)
        yield self.norms[0], model.encoder.norm
        yield self.norms[1], model.decoder.norm


class DecoderOnly(Placed):
    """Source and target are one text; no word sees the padding behind it, so that causal attention needs no mask."""

    def __init__(self, shape: Any, vocabulary: int) -> None:
        super().__init__(shape, vocabulary)
        self.prefix = shape.wiring == "prefix"
        self.layers = nn.ModuleList(TransformerLayer(shape, crossed=False) for _ in range(shape.decoder_layers))
        self.norm = nn.LayerNorm(shape.width)

    def forward(self, source: Tensor, inputs: Tensor) -> Tensor:
        tokens, columns = one_text(source, inputs)
        mask = None
        if self.prefix:
            places = torch.arange(tokens.size(1))
            in_source = places < (source != PAD).sum(1).view(-1, 1, 1, 1)  # (B, 1, 1, L)
            mask = in_source | (places <= places.unsqueeze(1))
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, mask)
        return self.norm(of_columns(x, columns))

    def twins(self, model: Any) -> Twins:
        for mine, theirs in zip(self.layers, model.decoder.layers, strict=True):
            yield from layer_twins(mine, theirs)
        yield self.norm, model.decoder.norm
