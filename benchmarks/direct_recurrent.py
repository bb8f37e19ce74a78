"""Recurrent encoder–decoders in plain PyTorch."""

from collections.abc import Iterator
from itertools import count
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from benchmarks.direct_common import Additive, Direct, Twins, maxout, read
from saccade.data.tokenizers import PAD


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


class GNMT(Direct):
    """Only the lowest layer of the decoder waits for an attention; the others are a call of `nn.LSTM` each."""

    def __init__(self, shape: Any, vocabulary: int) -> None:
        E, H = shape.embedding, shape.width
        super().__init__(vocabulary, E, shape.dropout)
        higher = range(1, shape.layers)
        self.both_ways = nn.LSTM(E, H, batch_first=True, bidirectional=True)
        self.reading = nn.ModuleList(nn.LSTM(2 * H if i == 1 else H, H, batch_first=True) for i in higher)
        self.score = Additive(H, H, H)
        self.cell = nn.LSTMCell(E + H, H)
        self.writing = nn.ModuleList(nn.LSTM(H + H, H, batch_first=True) for _ in higher)
        self.readout = nn.Linear(H, E)

    def encode(self, source: Tensor) -> Tensor:
        x, _ = read(self.both_ways, self.embed(source), source)
        for i, layer in enumerate(self.reading, start=1):
            m, _ = layer(self.dropout(x))
            x = m + x if i >= 2 else m
        return x

    def forward(self, source: Tensor, inputs: Tensor) -> Tensor:
        h, y = self.encode(source), self.embed(inputs)
        padding, keys = source == PAD, self.score.U(h)
        m = c = h.new_zeros(h.size(0), h.size(2))
        lowest, contexts = [], []
        for y_t in y.unbind(1):
            e = self.score(m, keys).masked_fill(padding, float("-inf"))
            a = torch.bmm(e.softmax(-1).unsqueeze(1), h).squeeze(1)
            m, c = self.cell(torch.cat([y_t, a], dim=-1), (m, c))
            lowest.append(m)
            contexts.append(a)
        x, a_T = torch.stack(lowest, 1), torch.stack(contexts, 1)
        for i, layer in enumerate(self.writing, start=1):
            m_T, _ = layer(torch.cat([self.dropout(x), a_T], dim=-1))
            x = m_T + x if i >= 2 else m_T
        return self.dropout(self.readout(x))

    def twins(self, model: Any) -> Twins:
        yield self.both_ways, model.encoder.lowest.rnn
        yield self.reading, model.encoder.layers
        yield self.score, model.decoder.look.score
        yield self.cell, model.decoder.layers[0]
        yield self.writing, model.decoder.layers[1:]
        yield self.readout, model.decoder.readout


class RCTM(Direct):
    """Convolutions make one vector of the source; a plain RNN is told it at every step."""

    def __init__(self, shape: Any, vocabulary: int) -> None:
        E, H, self.largest = shape.embedding, shape.width, shape.largest_kernel
        super().__init__(vocabulary, E, shape.dropout)
        self.sizes = list(range(2, self.largest + 1))
        self.K, self.L = (nn.Parameter(torch.empty(sum(self.sizes), E)) for _ in range(2))
        self.decoder = nn.RNN(2 * E, H, batch_first=True)
        self.readout = nn.Linear(H, E)

    def encode(self, source: Tensor) -> Tensor:
        """(B, S) → (B, E). A row leaves the batch once its columns are few enough for a top kernel."""
        kernels, tops = self.K.split(self.sizes), pad_sequence(list(self.L.split(self.sizes)), batch_first=True)
        x, columns, rows = self.embed(source).mT, (source != PAD).sum(1), torch.arange(source.size(0))
        vectors, order = [], []
        for i in count(2):
            size = min(i, self.largest)
            ends = columns <= size
            if ends.any():
                vectors.append(self.fold(x[ends, :, :size], columns[ends], tops))
                order.append(rows[ends])
                if ends.all():
                    break
                x, columns, rows = x[~ends], columns[~ends], rows[~ends]
            x = torch.tanh(F.conv1d(x, kernels[size - 2].mT.unsqueeze(1), groups=x.size(1)))
            columns = columns - (size - 1)
        return torch.cat(vectors)[torch.cat(order).argsort()]

    def fold(self, x: Tensor, columns: Tensor, tops: Tensor) -> Tensor:
        """Each row of x (·, E, C) through the top kernel of its columns; a single one is the vector itself."""
        folded = torch.tanh((tops[columns.clamp(min=2) - 2, : x.size(2)].mT * x).sum(-1))
        return torch.where(columns.unsqueeze(1) > 1, folded, x[..., 0])

    def forward(self, source: Tensor, inputs: Tensor) -> Tensor:
        e, v = self.encode(source), self.embed(inputs)
        h, _ = self.decoder(torch.cat([v, e.unsqueeze(1).expand(-1, v.size(1), -1)], dim=-1))
        return self.dropout(self.readout(h))

    def twins(self, model: Any) -> Twins:
        yield self.decoder, model.decoder.stack
        yield self.readout, model.decoder.readout

    def pairs(self, model: Any) -> Iterator[tuple[Tensor, Tensor]]:
        yield from super().pairs(model)
        yield self.K, model.encoder.K
        yield self.L, model.encoder.L
