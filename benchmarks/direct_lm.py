"""Recurrent language models in plain PyTorch: source and target are one text, read in one call of `nn.LSTM`."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.direct_common import Additive, Direct, Twins, of_columns, one_text

PARTS = {"attention": 1, "key-value": 2, "key-value-predict": 3}


class RecurrentLM(Direct):
    def __init__(self, shape: Any, vocabulary: int) -> None:
        E, H, layers = shape.embedding, shape.width, shape.layers
        super().__init__(vocabulary, E, shape.dropout)
        self.rnn = nn.LSTM(E, H, layers, batch_first=True, dropout=shape.dropout if layers > 1 else 0.0)

    def look_back(self, h: Tensor, columns: Tensor) -> Tensor:
        """From all outputs (B, L, H), what is said at some columns: (B, T, E)."""
        raise NotImplementedError

    def forward(self, source: Tensor, inputs: Tensor) -> Tensor:
        tokens, columns = one_text(source, inputs)
        h, _ = self.rnn(self.embed(tokens))
        return self.dropout(torch.tanh(self.look_back(h, columns)))

    def twins(self, model: Any) -> Twins:
        yield self.rnn, model.decoder.stack


class AttentiveLM(RecurrentLM):
    """Each output is key, value and prediction, or a part of it is."""

    def __init__(self, shape: Any, vocabulary: int) -> None:
        super().__init__(shape, vocabulary)
        self.parts, self.window = PARTS[shape.wiring], shape.window
        part = shape.width // self.parts
        self.score = Additive(part, part, part)
        self.W_r, self.W_x = (nn.Linear(part, shape.embedding, bias=False) for _ in range(2))

    def look_back(self, h: Tensor, columns: Tensor) -> Tensor:
        parts = h.chunk(self.parts, dim=-1)
        k, v, p = parts[0], parts[min(1, self.parts - 1)], parts[-1]
        distance = columns.unsqueeze(-1) - torch.arange(h.size(1))  # (B, T, L)
        unseen = distance <= 0 if self.window is None else (distance <= 0) | (distance > self.window)
        e = self.score(of_columns(k, columns), self.score.U(k).unsqueeze(1))
        r = torch.bmm(e.masked_fill(unseen, float("-inf")).softmax(-1), v)
        return self.W_r(r) + self.W_x(of_columns(p, columns))

    def twins(self, model: Any) -> Twins:
        yield from super().twins(model)
        yield self.score, model.decoder.look_back.score
        yield self.W_r, model.decoder.look_back.W_r
        yield self.W_x, model.decoder.look_back.W_x


class NgramLM(RecurrentLM):
    """Parts of the last N - 1 outputs, side by side."""

    def __init__(self, shape: Any, vocabulary: int) -> None:
        super().__init__(shape, vocabulary)
        self.order = shape.order
        self.W_N = nn.Linear(shape.width, shape.embedding, bias=False)

    def look_back(self, h: Tensor, columns: Tensor) -> Tensor:
        L = h.size(1)
        gram = [F.pad(part, (0, 0, i, 0))[:, :L] for i, part in enumerate(h.chunk(self.order - 1, dim=-1))]
        return self.W_N(of_columns(torch.cat(gram, dim=-1), columns))

    def twins(self, model: Any) -> Twins:
        yield from super().twins(model)
        yield self.W_N, model.decoder.look_back.W_N
