"""What the direct networks share: words in, the loss out, weights in pairs with Saccade's."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from saccade.data.batching import Batch
from saccade.data.tokenizers import PAD

Twins = Iterator[tuple[nn.Module, nn.Module]]


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


def one_text(source: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Each row's target right behind its source, padding at the right, where nothing that looks back sees it.

    The tokens (B, L), and the columns in which the target stands, (B, T).
    """
    columns = (source != PAD).sum(1, keepdim=True) + torch.arange(inputs.size(1))
    tokens = F.pad(source, (0, inputs.size(1)), value=PAD).scatter(1, columns, inputs)
    longest = int((tokens != PAD).sum(1).max())
    return tokens[:, :longest], columns.clamp(max=longest - 1)


def of_columns(states: Tensor, columns: Tensor) -> Tensor:
    """(B, L, ·), (B, T) → (B, T, ·)."""
    return torch.take_along_dim(states, columns.unsqueeze(-1), dim=1)


def maxout(x: Tensor) -> Tensor:
    return x.unflatten(-1, (-1, 2)).amax(-1)


class Additive(nn.Module):
    """e = vᵀ tanh(W s + U h), with U h given: for each s (…, ·), over keys (…, K, ·)."""

    def __init__(self, query: int, key: int, width: int) -> None:
        super().__init__()
        self.W = nn.Linear(query, width, bias=False)
        self.U = nn.Linear(key, width, bias=False)
        self.v = nn.Parameter(torch.empty(width))

    def forward(self, s: Tensor, keys: Tensor) -> Tensor:
        return torch.tanh(self.W(s).unsqueeze(-2) + keys) @ self.v
