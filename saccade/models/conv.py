"""Convolutional sequence to sequence: ConvS2S (Gehring et al. 2017) and ByteNet (Kalchbrenner et al. 2016).

A causal convolution sees the last few positions only, so a decoder's state is the last inputs of each of its layers:
generation computes one new position a step and recomputes nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from saccade.attention.core import attend
from saccade.attention.dropout import Dropout
from saccade.attention.masks import over_keys
from saccade.attention.positions import Learned
from saccade.attention.scores import Dot
from saccade.attention.watching import MEMORY
from saccade.models.protocol import DecoderOutput, Memory
from saccade.models.recompute import Recomputable

HALF = 0.5**0.5  # keeps the variance of a sum of two


@dataclass(frozen=True)
class ConvState:
    """What the decoder reads of the source, and the last inputs of each of its causal convolutions."""

    memory: Memory
    recent: tuple[Tensor, ...]  # (B, reach, width) a layer
    position: int = 0

    def select(self, indices: Tensor) -> "ConvState":
        recent = tuple(part.index_select(0, indices) for part in self.recent)
        return replace(self, memory=self.memory.select(indices), recent=recent)


class CausalConv(nn.Module):
    """y_t = b + Σ_i W_i x_{t - i·dilation}, i = 0 … kernel - 1, over what came before."""

    def __init__(self, inputs: int, outputs: int, kernel: int, dilation: int = 1, normed: bool = False) -> None:
        super().__init__()
        conv = nn.Conv1d(inputs, outputs, kernel, dilation=dilation)
        self.conv = weight_norm(conv) if normed else conv
        self.inputs = inputs
        self.reach = (kernel - 1) * dilation

    def forward(self, x: Tensor, recent: Tensor) -> tuple[Tensor, Tensor]:
        """x (B, T, inputs) and the `reach` inputs before it → outputs (B, T, outputs), the new recent inputs."""
        seen = torch.cat([recent.to(x.dtype), x], dim=1)
        return self.conv(seen.mT).mT, seen[:, seen.size(1) - self.reach :]

    def start(self, like: Tensor) -> Tensor:
        """Before the first position there is nothing: zeros."""
        return like.new_zeros(like.size(0), self.reach, self.inputs)


def same_conv(x: Tensor, conv: nn.Module, mask: Tensor) -> Tensor:
    """A convolution centred on each position (B, S, ·); padding counts as nothing, as beyond the sentence."""
    return conv(x.masked_fill(~mask.unsqueeze(-1), 0.0).mT).mT


def glu(gates: Tensor) -> Tensor:
    """[a; b] → a ∘ σ(b), (B, T, 2·) → (B, T, ·), along the axis on which a convolution's output lies together."""
    return F.glu(gates.mT, dim=1).mT


class _ScaleGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad * ctx.scale, None


class PlacedEmbedding(nn.Module):
    """e_i = W[token_i] + P[i], both drawn from N(0, 0.1²)   (Gehring et al. 2017, 3.1, 3.5)."""

    def __init__(self, table: nn.Embedding, max_positions: int, dropout: float) -> None:
        super().__init__()
        self.table = table
        self.positions = Learned(table.embedding_dim, max_positions)
        nn.init.normal_(self.positions.table, std=0.1)
        self.dropout = Dropout(dropout)

    def forward(self, tokens: Tensor, start: int = 0) -> Tensor:
        return self.dropout(self.table(tokens) + self.positions(start, tokens.size(1)))


def linear(inputs: int, outputs: int, dropout: float = 0.0) -> nn.Module:
    """A weight-normalised matrix drawn from N(0, (1 - p)/n)   (Gehring et al. 2017, 3.5)."""
    layer = nn.Linear(inputs, outputs)
    nn.init.normal_(layer.weight, std=((1 - dropout) / inputs) ** 0.5)
    nn.init.zeros_(layer.bias)
    return weight_norm(layer)


def _draw_for_glu(conv: nn.Conv1d, dropout: float) -> None:
    """A convolution that a gated linear unit follows: N(0, 4(1 - p)/n)   (Gehring et al. 2017, 3.5)."""
    nn.init.normal_(conv.weight, std=(4 * (1 - dropout) / (conv.kernel_size[0] * conv.in_channels)) ** 0.5)
    if conv.bias is not None:
        nn.init.zeros_(conv.bias)


class ConvEncoder(nn.Module):
    """z^l = (GLU(conv(z^{l-1})) + z^{l-1}) √½   (Gehring et al. 2017, 3.2, 3.4).

    The memory of a word is its key z_j and its value (z_j + e_j) √½, side by side.
    """

    def __init__(
        self, embedding: PlacedEmbedding, width: int, kernel: int, layers: int, dropout: float, attentions: int
    ):
        super().__init__()
        self.embedding = embedding
        self.enter = linear(embedding.table.embedding_dim, width, dropout)
        convs = [nn.Conv1d(width, 2 * width, kernel, padding=kernel // 2) for _ in range(layers)]
        for conv in convs:
            _draw_for_glu(conv, dropout)
        self.convs = nn.ModuleList(weight_norm(conv) for conv in convs)
        self.leave = linear(width, embedding.table.embedding_dim)
        self.dropout = Dropout(dropout)
        # Every attention of the decoder sends a gradient here; the sum is scaled back (3.4).
        self.gradient_scale = 1 / (2 * attentions)

    def forward(self, source: Tensor, mask: Tensor) -> Memory:
        e = self.embedding(source)
        z = self.enter(e)
        for conv in self.convs:
            z = (glu(same_conv(self.dropout(z), conv, mask)) + z) * HALF
        z = self.leave(z)
        if self.training:  # otherwise a gradient is asked for what it says, not to learn from
            z = _ScaleGradient.apply(z, self.gradient_scale)
        return Memory(torch.cat([z, (z + e) * HALF], dim=-1), mask)


class ConvBlock(Recomputable):
    """One block of the decoder: convolution, gate, and an attention of its own ("multi-step").

    d_i = W h_i + b + g_i,  α_ij = softmax_j(d_i · z_j),  c_i = m √(1/m) Σ_j α_ij (z_j + e_j)   (eq. 1 and 2, 3.4)
    """

    looks, heads = MEMORY, 1

    def __init__(self, embedding: int, width: int, kernel: int, dropout: float) -> None:
        super().__init__()
        self.conv = CausalConv(width, 2 * width, kernel)
        _draw_for_glu(self.conv.conv, dropout)
        self.conv.conv = weight_norm(self.conv.conv)
        self.query = linear(width, embedding)
        self.back = linear(embedding, width)
        self.score = Dot()
        self.dropout = Dropout(dropout)

    def forward(
        self, h: Tensor, g: Tensor, memory: Memory, recent: Tensor, need_weights: bool
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """h (B, T, width), the target's embeddings g; also returns the recent inputs and where it looked."""
        gates, recent = self.conv(self.dropout(h), recent)
        x = glu(gates)
        d = (self.query(x) + g) * HALF
        z, v = memory.states.chunk(2, dim=-1)
        found = attend(
            d.unsqueeze(1),
            z.unsqueeze(1),
            v.unsqueeze(1),
            score=self.score,
            mask=over_keys(memory.mask),
            need_weights=need_weights,
        )
        m = memory.mask.sum(1).to(x.dtype).view(-1, 1, 1)
        context = found.context[:, 0] * m.sqrt()  # m √(1/m): the mean of m values has 1/m of their variance
        x = (x + self.back(context)) * HALF
        return (x + h) * HALF, recent, found.weights


class ConvDecoder(nn.Module):
    """Blocks of causal convolutions, each with its attention   (Gehring et al. 2017, 3)."""

    attends = True

    def __init__(
        self, embedding: PlacedEmbedding, output: nn.Linear, width: int, kernel: int, layers: int, dropout: float
    ):
        super().__init__()
        self.embedding = embedding
        self.output = output
        size = embedding.table.embedding_dim
        self.enter = linear(size, width, dropout)
        self.blocks = nn.ModuleList(ConvBlock(size, width, kernel, dropout) for _ in range(layers))
        self.leave = linear(width, size)
        self.dropout = Dropout(dropout)

    def init_state(self, memory: Memory, capacity: int | None = None) -> ConvState:
        return ConvState(memory, tuple(block.conv.start(memory.states) for block in self.blocks))  # type: ignore[union-attr, operator]

    def forward(self, tokens: Tensor, state: ConvState, need_weights: bool = False) -> DecoderOutput:
        g = self.embedding(tokens, state.position)
        h = self.enter(g)
        recent, weights = [], []
        for block, before in zip(self.blocks, state.recent, strict=True):
            h, kept, looked = block(h, g, state.memory, before, need_weights)
            recent.append(kept)
            weights.append(looked)
        after = ConvState(state.memory, tuple(recent), state.position + tokens.size(1))
        attentions = tuple(w for w in weights if w is not None) if need_weights else None
        return DecoderOutput(self.dropout(self.leave(h)), after, attentions)

    def project(self, hidden: Tensor) -> Tensor:
        return self.output(hidden)


class ByteNetBlock(nn.Module):
    """x + W₃ r(n(conv(r(n(W₁ r(n(x)))))))), with n LayerNorm, r ReLU and W₁ halving the width.

    (Kalchbrenner et al. 2016, 3.6, fig. 3 left)
    """

    def __init__(self, width: int, conv: nn.Module, dropout: float) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(n) for n in (width, width // 2, width // 2))
        self.narrow = nn.Linear(width, width // 2)
        self.conv = conv
        self.widen = nn.Linear(width // 2, width)
        self.dropout = Dropout(dropout)

    def before(self, x: Tensor) -> Tensor:
        """What the convolution reads."""
        return F.relu(self.norms[1](self.narrow(F.relu(self.norms[0](x)))))

    def after(self, x: Tensor, convolved: Tensor) -> Tensor:
        return x + self.dropout(self.widen(F.relu(self.norms[2](convolved))))


class ByteNetEncoder(nn.Module):
    """Dilated convolutions over the source; one state a position, for the decoder that is stacked on top."""

    def __init__(self, embedding: nn.Embedding, kernel: int, dilations: Sequence[int], dropout: float) -> None:
        super().__init__()
        width = embedding.embedding_dim
        self.embedding = embedding
        self.dropout = Dropout(dropout)
        self.blocks = nn.ModuleList(
            ByteNetBlock(
                width,
                nn.Conv1d(width // 2, width // 2, kernel, dilation=d, padding=d * (kernel // 2)),
                dropout,
            )
            for d in dilations
        )

    def forward(self, source: Tensor, mask: Tensor) -> Memory:
        x = self.dropout(self.embedding(source))
        for block in self.blocks:
            assert isinstance(block, ByteNetBlock)
            x = block.after(x, same_conv(block.before(x), block.conv, mask))
        return Memory(x, mask)


class ByteNetDecoder(nn.Module):
    """Target position t reads source position t: no attention, a stack on a stack   (Kalchbrenner et al. 2016, 3.1).

    A target longer than its source reads zeros beyond the source's end ("dynamic unfolding" without its length
    factor, which |t̂| = a|s| + b sets to a = 1 for languages of like length).
    """

    attends = False

    def __init__(
        self, embedding: nn.Embedding, output: nn.Linear, kernel: int, dilations: Sequence[int], dropout: float
    ) -> None:
        super().__init__()
        width = embedding.embedding_dim
        self.embedding = embedding
        self.output = output
        self.dropout = Dropout(dropout)
        self.enter = nn.Linear(2 * width, width)
        self.blocks = nn.ModuleList(
            ByteNetBlock(width, CausalConv(width // 2, width // 2, kernel, d), dropout) for d in dilations
        )
        self.leave = nn.Sequential(nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, width))

    def init_state(self, memory: Memory, capacity: int | None = None) -> ConvState:
        return ConvState(memory, tuple(block.conv.start(memory.states) for block in self.blocks))  # type: ignore[union-attr, operator]

    def forward(self, tokens: Tensor, state: ConvState, need_weights: bool = False) -> DecoderOutput:
        T = tokens.size(1)
        beneath = state.memory.states.masked_fill(~state.memory.mask.unsqueeze(-1), 0.0)
        beneath = beneath[:, state.position : state.position + T]
        beneath = F.pad(beneath, (0, 0, 0, T - beneath.size(1)))
        x = self.enter(torch.cat([self.dropout(self.embedding(tokens)), beneath], dim=-1))
        recent = []
        for block, before in zip(self.blocks, state.recent, strict=True):
            assert isinstance(block, ByteNetBlock)
            convolved, kept = block.conv(block.before(x), before)
            x = block.after(x, convolved)
            recent.append(kept)
        after = ConvState(state.memory, tuple(recent), state.position + T)
        return DecoderOutput(self.dropout(self.leave(x)), after, None)

    def project(self, hidden: Tensor) -> Tensor:
        return self.output(hidden)
