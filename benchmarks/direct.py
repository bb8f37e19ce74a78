"""What a practitioner would write instead: each family's network in plain PyTorch, without Saccade's parts.

Each is what good code of its kind looks like: fused `nn.GRU` and `nn.LSTM` where the wiring allows, cells in a loop
where it does not, keys projected once, `F.scaled_dot_product_attention`, logits of real positions only. Embeddings
are tied, as Saccade's are with a joint vocabulary.

A new network is a class with `forward` and `twins`, and a line in `NETWORKS`.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from saccade.data.batching import Batch
from saccade.data.tokenizers import PAD

Twins = Iterator[tuple[nn.Module, nn.Module]]

HALF = 0.5**0.5


class Direct(nn.Module):
    """A network that reads a source and a target and says what comes next, before the output matrix."""

    def __init__(self, vocabulary: int, width: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, source: Tensor, inputs: Tensor) -> Tensor:
        """(B, S), (B, T) → (B, T, E)."""
        raise NotImplementedError

    def twins(self, model: Any) -> Twins:
        """Each part that has weights, and the part of Saccade's model with the same weights in the same order."""
        raise NotImplementedError

    def loss(self, batch: Batch, smoothing: float) -> Tensor:
        real = batch.gold != PAD
        logits = F.linear(self(batch.source, batch.inputs)[real], self.embedding.weight)
        return F.cross_entropy(logits, batch.gold[real], label_smoothing=smoothing)

    def embed(self, tokens: Tensor) -> Tensor:
        return self.dropout(self.embedding(tokens))

    def pairs(self, model: Any) -> Iterator[tuple[Tensor, Tensor]]:
        """Each weight and its twin."""
        yield self.embedding.weight, model.output_matrix
        for mine, theirs in self.twins(model):
            yield from zip(mine.parameters(), theirs.parameters(), strict=True)

    @torch.no_grad()
    def copy_from(self, model: Any) -> None:
        for mine, theirs in self.pairs(model):
            mine.copy_(theirs)


def read(rnn: nn.RNNBase, embedded: Tensor, source: Tensor) -> tuple[Tensor, Any]:
    """States of all positions (B, S, ·) and the last states of every layer."""
    lengths = (source != PAD).sum(1)
    packed = pack_padded_sequence(embedded, lengths, batch_first=True, enforce_sorted=False)
    states, last = rnn(packed)
    return pad_packed_sequence(states, batch_first=True, total_length=source.size(1))[0], last


def maxout(x: Tensor) -> Tensor:
    return x.unflatten(-1, (-1, 2)).amax(-1)


class Cho(Direct):
    def __init__(self, shape: Any, vocabulary: int) -> None:
        E, H = shape.embedding, shape.width
        super().__init__(vocabulary, E, shape.dropout)
        self.encoder = nn.GRU(E, H, batch_first=True)
        self.summary = nn.Linear(H, H)
        self.bridge = nn.Linear(H, H)
        self.decoder = nn.GRU(E + H, H, batch_first=True)
        self.readout = nn.Linear(H + E + H, 2 * E)

    def forward(self, source: Tensor, inputs: Tensor) -> Tensor:
        _, last = read(self.encoder, self.embed(source), source)
        c = torch.tanh(self.summary(last[-1]))
        y, c_T = self.embed(inputs), c.unsqueeze(1).expand(-1, inputs.size(1), -1)
        s, _ = self.decoder(torch.cat([y, c_T], dim=-1), torch.tanh(self.bridge(c)).unsqueeze(0))
        return self.dropout(maxout(self.readout(torch.cat([s, y, c_T], dim=-1))))

    def twins(self, model: Any) -> Twins:
        yield self.encoder, model.encoder.encoder.rnn
        yield self.summary, model.decoder.summary
        yield self.bridge, model.decoder.bridge.linear
        yield self.decoder, model.decoder.stack
        yield self.readout, model.decoder.readout.linear


class Sutskever(Direct):
    def __init__(self, shape: Any, vocabulary: int) -> None:
        E, H = shape.embedding, shape.width
        super().__init__(vocabulary, E, shape.dropout)
        self.encoder = nn.LSTM(E, H, shape.layers, batch_first=True, dropout=shape.dropout)
        self.decoder = nn.LSTM(E, H, shape.layers, batch_first=True, dropout=shape.dropout)
        self.readout = nn.Linear(H, E)

    def forward(self, source: Tensor, inputs: Tensor) -> Tensor:
        lengths = (source != PAD).sum(1, keepdim=True)
        places = lengths - 1 - torch.arange(source.size(1))
        reversed_source = source.gather(1, places.clamp(min=0)).masked_fill(places < 0, PAD)
        _, last = read(self.encoder, self.embed(reversed_source), reversed_source)
        states, _ = self.decoder(self.embed(inputs), last)
        return self.dropout(self.readout(states))

    def twins(self, model: Any) -> Twins:
        yield self.encoder, model.encoder.encoder.rnn
        yield self.decoder, model.decoder.stack
        yield self.readout, model.decoder.readout


class Additive(nn.Module):
    """e = vᵀ tanh(W s + U h), with U h given."""

    def __init__(self, query: int, key: int, width: int) -> None:
        super().__init__()
        self.W = nn.Linear(query, width, bias=False)
        self.U = nn.Linear(key, width, bias=False)
        self.v = nn.Parameter(torch.empty(width))

    def forward(self, s: Tensor, keys: Tensor) -> Tensor:
        return torch.tanh(self.W(s).unsqueeze(1) + keys) @ self.v


class Bahdanau(Direct):
    def __init__(self, shape: Any, vocabulary: int) -> None:
        E, H = shape.embedding, shape.width
        super().__init__(vocabulary, E, shape.dropout)
        self.encoder = nn.GRU(E, H, batch_first=True, bidirectional=True)
        self.bridge = nn.Linear(H, H)
        self.score = Additive(H, 2 * H, H)
        self.cell = nn.GRUCell(E + 2 * H, H)
        self.readout = nn.Linear(H + E + 2 * H, 2 * E)

    def forward(self, source: Tensor, inputs: Tensor) -> Tensor:
        h, last = read(self.encoder, self.embed(source), source)
        padding, keys = source == PAD, self.score.U(h)
        y, s = self.embed(inputs), torch.tanh(self.bridge(last[1]))
        states, contexts = [], []
        for y_t in y.unbind(1):
            e = self.score(s, keys).masked_fill(padding, float("-inf"))
            c = torch.bmm(e.softmax(-1).unsqueeze(1), h).squeeze(1)
            states.append(s)
            contexts.append(c)
            s = self.cell(torch.cat([y_t, c], dim=-1), s)
        return self.dropout(
            maxout(self.readout(torch.cat([torch.stack(states, 1), y, torch.stack(contexts, 1)], dim=-1)))
        )

    def twins(self, model: Any) -> Twins:
        yield self.encoder, model.encoder.rnn
        yield self.bridge, model.decoder.bridge.linear
        yield self.score, model.decoder.look.score
        yield self.cell, model.decoder.stack
        yield self.readout, model.decoder.readout.linear


class Luong(Direct):
    """Without input feeding: the decoder is one call of `nn.LSTM`, the attention one product."""

    def __init__(self, shape: Any, vocabulary: int) -> None:
        E, H = shape.embedding, shape.width
        super().__init__(vocabulary, E, shape.dropout)
        self.encoder = nn.LSTM(E, H, shape.layers, batch_first=True, dropout=shape.dropout)
        self.decoder = self.make_decoder(E, H, shape.layers, shape.dropout)
        self.score = nn.Linear(H, H, bias=False)
        self.readout = nn.Linear(2 * H, E)

    def make_decoder(self, E: int, H: int, layers: int, dropout: float) -> nn.Module:
        return nn.LSTM(E, H, layers, batch_first=True, dropout=dropout)

    def attend(self, s: Tensor, keys: Tensor, h: Tensor, padding: Tensor) -> Tensor:
        """(B, T, H) → (B, T, E)."""
        e = torch.bmm(s, keys.mT).masked_fill(padding.unsqueeze(1), float("-inf"))
        c = torch.bmm(e.softmax(-1), h)
        return torch.tanh(self.readout(torch.cat([c, s], dim=-1)))

    def forward(self, source: Tensor, inputs: Tensor) -> Tensor:
        h, last = read(self.encoder, self.embed(source), source)
        s, _ = self.decoder(self.embed(inputs), last)
        return self.dropout(self.attend(s, self.score(h), h, source == PAD))

    def twins(self, model: Any) -> Twins:
        yield self.encoder, model.encoder.rnn
        yield self.decoder, model.decoder.stack
        yield self.score, model.decoder.look.score
        yield self.readout, model.decoder.readout


class LuongFeeding(Luong):
    """With input feeding: each step waits for the attention of the last."""

    def make_decoder(self, E: int, H: int, layers: int, dropout: float) -> nn.Module:
        return nn.ModuleList(nn.LSTMCell(H if i else 2 * E, H) for i in range(layers))

    def forward(self, source: Tensor, inputs: Tensor) -> Tensor:
        h, last = read(self.encoder, self.embed(source), source)
        padding, keys = source == PAD, self.score(h)
        y, states = self.embed(inputs), list(zip(*last, strict=True))
        fed = y.new_zeros(y.size(0), y.size(2))
        outputs = []
        for y_t in y.unbind(1):
            x = torch.cat([y_t, fed], dim=-1)
            for i, cell in enumerate(self.decoder):
                states[i] = cell(self.dropout(x) if i else x, states[i])
                x = states[i][0]
            fed = self.attend(x.unsqueeze(1), keys, h, padding).squeeze(1)
            outputs.append(fed)
        return self.dropout(torch.stack(outputs, dim=1))


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


class Transformer(Direct):
    positions: Tensor

    def __init__(self, shape: Any, vocabulary: int) -> None:
        super().__init__(vocabulary, shape.width, shape.dropout)
        frequencies = 10_000 ** -(torch.arange(0, shape.width, 2) / shape.width)
        angles = torch.arange(1024).unsqueeze(1) * frequencies
        self.register_buffer("positions", torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1))
        self.reading = nn.ModuleList(TransformerLayer(shape, crossed=False) for _ in range(shape.encoder_layers))
        self.writing = nn.ModuleList(TransformerLayer(shape, crossed=True) for _ in range(shape.decoder_layers))
        self.norms = nn.ModuleList(nn.LayerNorm(shape.width) for _ in range(2))

    def place(self, tokens: Tensor) -> Tensor:
        scaled = self.embedding(tokens) * self.embedding.embedding_dim**0.5
        return self.dropout(scaled + self.positions[: tokens.size(1)])

    def forward(self, source: Tensor, inputs: Tensor) -> Tensor:
        mask = (source != PAD)[:, None, None, :]
        x = self.place(source)
        for layer in self.reading:
            x = layer(x, mask)
        memory, y = self.norms[0](x), self.place(inputs)
        for layer in self.writing:
            y = layer(y, None, memory, mask)
        return self.norms[1](y)

    def twins(self, model: Any) -> Twins:
        layers = zip([*self.reading, *self.writing], [*model.encoder.layers, *model.decoder.layers], strict=True)
        for mine, theirs in layers:
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
        yield self.norms[0], model.encoder.norm
        yield self.norms[1], model.decoder.norm


class Network(NamedTuple):
    """A direct network, made from a model's resolved settings and a vocabulary, and the settings of its twin."""

    direct: Callable[[Any, int], Direct]
    settings: tuple[str, ...]


def _rnn(wiring: str, *more: str) -> tuple[str, ...]:
    return ("model.family=rnn", f"model.wiring={wiring}", *more)


LUONG = _rnn("luong", "model.cell=lstm", "model.layers=2", "model.score=bilinear")

NETWORKS: dict[str, Network] = {
    "cho": Network(Cho, _rnn("cho")),
    "sutskever": Network(
        Sutskever, _rnn("sutskever", "model.cell=lstm", "model.layers=4", "model.reverse_source=true")
    ),
    "bahdanau": Network(Bahdanau, _rnn("bahdanau")),
    "luong": Network(Luong, (*LUONG, "model.input_feeding=false")),
    "luong-feeding": Network(LuongFeeding, (*LUONG, "model.input_feeding=true")),
    "convs2s": Network(ConvS2S, ("model.family=conv", "model.wiring=convs2s")),
    "bytenet": Network(ByteNet, ("model.family=conv", "model.wiring=bytenet")),
    "transformer": Network(Transformer, ("model.family=transformer",)),
}
