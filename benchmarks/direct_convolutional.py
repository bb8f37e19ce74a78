"""Convolutional encoder–decoders in plain PyTorch."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from benchmarks.direct_common import Direct, Twins
from saccade.data.tokenizers import PAD

HALF = 0.5**0.5


class ConvS2S(Direct):
    def __init__(self, shape: Any, vocabulary: int) -> None:
        E, H, self.kernel = shape.embedding, shape.width, shape.kernel
        super().__init__(vocabulary, E, shape.dropout)
        self.source_positions = nn.Embedding(shape.max_positions, E)
        self.target_positions = nn.Embedding(shape.max_positions, E)
        self.enter_source, self.leave_source = weight_norm(nn.Linear(E, H)), weight_norm(nn.Linear(H, E))
        self.enter_target, self.leave_target = weight_norm(nn.Linear(E, H)), weight_norm(nn.Linear(H, E))
        self.reading = nn.ModuleList(
            weight_norm(nn.Conv1d(H, 2 * H, self.kernel, padding=self.kernel // 2)) for _ in range(shape.encoder_layers)
        )
        writing = range(shape.decoder_layers)
        self.writing = nn.ModuleList(weight_norm(nn.Conv1d(H, 2 * H, self.kernel)) for _ in writing)
        self.queries = nn.ModuleList(weight_norm(nn.Linear(H, E)) for _ in writing)
        self.backs = nn.ModuleList(weight_norm(nn.Linear(E, H)) for _ in writing)

    def place(self, tokens: Tensor, positions: nn.Embedding) -> Tensor:
        return self.dropout(self.embedding(tokens) + positions.weight[: tokens.size(1)])

    def encode(self, source: Tensor) -> tuple[Tensor, Tensor]:
        padding = (source == PAD).unsqueeze(-1)
        e = self.place(source, self.source_positions)
        z = self.enter_source(e)
        for conv in self.reading:
            x = self.dropout(z).masked_fill(padding, 0.0)
            z = (F.glu(conv(x.transpose(1, 2)), dim=1).transpose(1, 2) + z) * HALF
        z = self.leave_source(z)
        if z.requires_grad:  # every attention sends a gradient back; their sum is scaled down
            z.register_hook(lambda grad: grad / (2 * len(self.writing)))
        return z, (z + e) * HALF

    def forward(self, source: Tensor, inputs: Tensor) -> Tensor:
        keys, values = self.encode(source)
        padding = (source == PAD).unsqueeze(1)
        scale = (source != PAD).sum(1).to(keys.dtype).sqrt().view(-1, 1, 1)
        g = self.place(inputs, self.target_positions)
        h = self.enter_target(g)
        for conv, query, back in zip(self.writing, self.queries, self.backs, strict=True):
            x = F.pad(self.dropout(h).transpose(1, 2), (self.kernel - 1, 0))
            x = F.glu(conv(x), dim=1).transpose(1, 2)
            d = (query(x) + g) * HALF
            e = torch.bmm(d, keys.mT).masked_fill(padding, float("-inf"))
            c = torch.bmm(e.softmax(-1), values) * scale
            h = ((x + back(c)) * HALF + h) * HALF
        return self.dropout(self.leave_target(h))

    def twins(self, model: Any) -> Twins:
        encoder, decoder = model.encoder, model.decoder
        yield self.source_positions, encoder.embedding.positions
        yield self.target_positions, decoder.embedding.positions
        yield self.enter_source, encoder.enter
        yield self.leave_source, encoder.leave
        yield self.enter_target, decoder.enter
        yield self.leave_target, decoder.leave
        yield self.reading, encoder.convs
        for i, block in enumerate(decoder.blocks):
            yield self.writing[i], block.conv
            yield self.queries[i], block.query
            yield self.backs[i], block.back


class ByteNetBlock(nn.Module):
    def __init__(self, width: int, kernel: int, dilation: int, dropout: float, causal: bool) -> None:
        super().__init__()
        half, reach = width // 2, (kernel - 1) * dilation
        self.enter = nn.Sequential(
            nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, half), nn.LayerNorm(half), nn.ReLU()
        )
        self.conv = nn.Conv1d(half, half, kernel, dilation=dilation)
        self.around = (reach, 0) if causal else (reach // 2, reach // 2)
        self.leave = nn.Sequential(nn.LayerNorm(half), nn.ReLU(), nn.Linear(half, width), nn.Dropout(dropout))

    def forward(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
        y = self.enter(x)
        if padding is not None:
            y = y.masked_fill(padding, 0.0)
        return x + self.leave(self.conv(F.pad(y.transpose(1, 2), self.around)).transpose(1, 2))


class ByteNet(Direct):
    def __init__(self, shape: Any, vocabulary: int) -> None:
        E = shape.embedding
        super().__init__(vocabulary, E, shape.dropout)

        def blocks(layers: int, causal: bool) -> nn.ModuleList:
            dilations = [2 ** (i % shape.dilation_cycle) for i in range(layers)]
            return nn.ModuleList(ByteNetBlock(E, shape.kernel, d, shape.dropout, causal) for d in dilations)

        self.reading = blocks(shape.encoder_layers, causal=False)
        self.enter = nn.Linear(2 * E, E)
        self.writing = blocks(shape.decoder_layers, causal=True)
        self.leave = nn.Sequential(nn.LayerNorm(E), nn.ReLU(), nn.Linear(E, E))

    def forward(self, source: Tensor, inputs: Tensor) -> Tensor:
        padding, T = (source == PAD).unsqueeze(-1), inputs.size(1)
        x = self.embed(source)
        for block in self.reading:
            x = block(x, padding)
        beneath = x.masked_fill(padding, 0.0)[:, :T]
        beneath = F.pad(beneath, (0, 0, 0, T - beneath.size(1)))
        y = self.enter(torch.cat([self.embed(inputs), beneath], dim=-1))
        for block in self.writing:
            y = block(y)
        return self.dropout(self.leave(y))

    def twins(self, model: Any) -> Twins:
        blocks = zip([*self.reading, *self.writing], [*model.encoder.blocks, *model.decoder.blocks], strict=True)
        for mine, theirs in blocks:
            yield mine.enter[0], theirs.norms[0]
            yield mine.enter[2], theirs.narrow
            yield mine.enter[3], theirs.norms[1]
            yield mine.conv, theirs.conv
            yield mine.leave[0], theirs.norms[2]
            yield mine.leave[2], theirs.widen
        yield self.enter, model.decoder.enter
        yield self.leave, model.decoder.leave
