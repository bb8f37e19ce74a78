"""The Transformer encoder–decoder (Vaswani et al. 2017)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from saccade.attention.dropout import Dropout
from saccade.attention.masks import causal, over_keys
from saccade.attention.multihead import CrossAttention, Heads, KeyValue, SelfAttention, Step, initialise
from saccade.attention.positions import Places
from saccade.attention.relative import Relative
from saccade.attention.spans import Spans
from saccade.models.lean import lean
from saccade.models.protocol import DecoderOutput, Memory
from saccade.models.recompute import Recomputable
from saccade.models.transformer_state import TransformerState

# max(0, x) (Vaswani et al. 2017, eq. 2) · x Φ(x) (Hendrycks & Gimpel 2016, 2) · x σ(x) (Elfwing et al. 2018)
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu, "silu": F.silu}
# GLU variants (Shazeer 2020, eq. 5 and 6): the activation of one half gates the other.
GATED = {"reglu": "relu", "geglu": "gelu", "swiglu": "silu"}
# (x - E[x]) / √(Var[x] + ε) ∘ w + b (Ba et al. 2016, eq. 3 and 4) · x / √(E[x²] + ε) ∘ w (Zhang & Sennrich 2019, eq. 4)
NORMS: dict[str, Callable[[int], nn.Module]] = {"layer": nn.LayerNorm, "rms": nn.RMSNorm}


@dataclass(frozen=True)
class Shape:
    """The measures of a block."""

    width: int
    feed_forward: int
    heads: int
    key_heads: int
    norm: str = "pre"
    normalisation: str = "layer"
    residual: bool = True
    residual_scale: float = 1.0
    activation: str = "relu"
    dropout: float = 0.1
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0

    @property
    def split(self) -> Heads:
        return Heads(self.width, self.heads, self.key_heads)


class Residual(nn.Module):
    """The wiring around a sub-layer f.

    post (as published):  y = Norm(x + dropout(f(x)))
    pre:                  y = x + dropout(f(Norm(x)))
    DeepNorm:             y = Norm(α x + dropout(f(x)))   (Wang et al. 2022, 3)
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norm = NORMS[shape.normalisation](shape.width)
        self.pre = shape.norm == "pre"
        self.scale = shape.residual_scale if shape.residual else 0.0
        self.dropout = Dropout(shape.dropout)

    def enter(self, x: Tensor) -> Tensor:
        """What the sub-layer reads."""
        return self.norm(x) if self.pre else x

    def leave(self, x: Tensor, y: Tensor) -> Tensor:
        """What the next sub-layer gets, from this one's input x and output y."""
        if self.training:
            y = self.dropout(y)
        if self.scale:
            y = (x if self.scale == 1.0 else x * self.scale) + y
        return y if self.pre else self.norm(y)


class FeedForward(nn.Module):
    """FFN(x) = act(x W₁ + b₁) W₂ + b₂   (Vaswani et al. 2017, eq. 2).

    Gated: (act(x W₁) ∘ x V) W₂   (Shazeer 2020, eq. 6), W₁ and V as one matrix.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gated = shape.activation in GATED
        self.inner = nn.Linear(shape.width, shape.feed_forward * (2 if self.gated else 1))
        self.outer = nn.Linear(shape.feed_forward, shape.width)
        self.activation = ACTIVATIONS[GATED.get(shape.activation, shape.activation)]
        self.dropout = Dropout(shape.activation_dropout)

    def forward(self, x: Tensor) -> Tensor:
        if self.gated:
            gate, x = self.inner(x).chunk(2, dim=-1)
            return self.outer(self.dropout(self.activation(gate) * x))
        h = self.activation(self.inner(x))
        return self.outer(self.dropout(h) if self.training else h)


class EncoderLayer(Recomputable):
    """Self-attention, then feed-forward."""

    def __init__(self, shape: Shape, relative: Relative) -> None:
        super().__init__()
        self.attention = SelfAttention(shape.split, shape.attention_dropout, relative)
        self.around_attention = Residual(shape)
        self.feed_forward = FeedForward(shape)
        self.around_feed_forward = Residual(shape)

    def forward(self, x: Tensor, mask: Tensor | Spans, at: int | Tensor = 0) -> Tensor:
        """`at`: the position of the first word or, where sentences lie one behind the other, what tells each word's."""
        x = self.around_attention.leave(x, self.attention(self.around_attention.enter(x), mask, None, at).context)
        return self.around_feed_forward.leave(x, self.feed_forward(self.around_feed_forward.enter(x)))


class DecoderLayer(Recomputable):
    """Masked self-attention, cross-attention over the memory, then feed-forward."""

    def __init__(self, shape: Shape, relative: Relative) -> None:
        super().__init__()
        self.attention = SelfAttention(shape.split, shape.attention_dropout, relative)
        self.around_attention = Residual(shape)
        self.cross = CrossAttention(shape.split, shape.attention_dropout)
        self.around_cross = Residual(shape)
        self.feed_forward = FeedForward(shape)
        self.around_feed_forward = Residual(shape)

    def forward(
        self,
        y: Tensor,
        mask: Tensor | Spans | None,
        memory: KeyValue,
        memory_mask: Tensor | Spans | None,
        cache: KeyValue | None,
        at: "int | Tensor | Step",
        need_weights: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """`at`: the position from which y goes on, or the one step that it is."""
        x = self.around_attention.enter(y)
        if isinstance(at, Step):
            assert cache is not None
            y = self.around_attention.leave(y, self.attention.step(x, cache, at))
        else:
            y = self.around_attention.leave(y, self.attention(x, mask, cache, at).context)
        found = self.cross(self.around_cross.enter(y), memory, memory_mask, need_weights)
        y = self.around_cross.leave(y, found.context)
        y = self.around_feed_forward.leave(y, self.feed_forward(self.around_feed_forward.enter(y)))
        return y, found.weights


@torch.no_grad()
def shrink(stack: nn.Module, gain: float) -> None:
    """DeepNorm's initialisation: values, outputs and feed-forward drawn smaller   (Wang et al. 2022, fig. 2)."""
    for module in stack.modules():
        if isinstance(module, FeedForward):
            module.inner.weight.mul_(gain)
            module.outer.weight.mul_(gain)
        elif isinstance(module, SelfAttention):
            module.query_key_value.weight[-module.shape.key_width :].mul_(gain)
            module.output.weight.mul_(gain)
        elif isinstance(module, CrossAttention):
            module.key_value.weight[-module.shape.key_width :].mul_(gain)
            module.output.weight.mul_(gain)


class Embedding(nn.Module):
    """x_i = √E · W[token_i] + P[i], then dropout   (Vaswani et al. 2017, 3.4, 3.5).

    Concatenated instead: x_i = M [√E · W[token_i]; P[i]], which adding equals for M = [I I].
    """

    def __init__(self, table: nn.Embedding, positions: nn.Module, dropout: float, concatenated: bool = False) -> None:
        super().__init__()
        self.table = table
        self.positions = positions
        self.dropout = Dropout(dropout)
        self.scale = table.embedding_dim**0.5
        width = table.embedding_dim
        self.merge = nn.Linear(2 * width, width, bias=False) if concatenated else None

    def forward(self, tokens: Tensor, start: int = 0, places: Places | None = None) -> Tensor:
        """Tokens from position `start` on or, where rows differ, each in its place."""
        embedded = self.table(tokens) * self.scale
        if places is None:
            positions = self.positions(start, tokens.size(1)).to(embedded)
        else:
            positions = self.positions.at(places).to(embedded)  # type: ignore[operator]
        if self.merge is None:
            embedded = embedded + positions
            return self.dropout(embedded) if self.training else embedded
        return self.dropout(self.merge(torch.cat([embedded, positions.expand_as(embedded)], dim=-1)))


def final_norm(shape: Shape) -> nn.Module:
    """Pre-norm leaves the residual stream un-normalised; one norm closes each stack."""
    return NORMS[shape.normalisation](shape.width) if shape.norm == "pre" else nn.Identity()


class TransformerEncoder(nn.Module):
    """Source ids → memory. `relatives`: what each layer knows of distances, one a layer."""

    def __init__(self, embedding: Embedding, shape: Shape, relatives: Sequence[Relative]) -> None:
        super().__init__()
        self.embedding = embedding
        self.layers = nn.ModuleList(EncoderLayer(shape, relative) for relative in relatives)
        self.norm = final_norm(shape)
        initialise(self.layers)

    def forward(self, source: Tensor, mask: Tensor) -> Memory:
        x = self.embedding(source)
        for layer in self.layers:
            x = layer(x, over_keys(mask))
        return Memory(self.norm(x), mask)


class TransformerDecoder(nn.Module):
    """Target ids and a memory → what comes next."""

    attends = True
    fixed_steps = True  # a step can be made over fixed storage, at a position that is a tensor

    def __init__(self, embedding: Embedding, output: nn.Linear, shape: Shape, relatives: Sequence[Relative]) -> None:
        super().__init__()
        self.embedding = embedding
        self.layers = nn.ModuleList(DecoderLayer(shape, relative) for relative in relatives)
        self.norm = final_norm(shape)
        self.output = output
        initialise(self.layers)

    def init_state(self, memory: Memory, capacity: int | None = None) -> TransformerState:
        B = memory.states.size(0)
        projected = tuple(layer.cross.project(memory.states) for layer in self.layers)  # type: ignore[union-attr, operator]
        if capacity is not None:  # each in one piece: they are read at every step
            projected = tuple(KeyValue(*(part.contiguous() for part in layer)) for layer in projected)
        steps = None if capacity is None else lean(list(self.layers))
        return TransformerState(
            memory=projected,
            memory_mask=over_keys(memory.mask),
            caches=None
            if capacity is None
            else tuple(layer.attention.empty_cache(B, capacity) for layer in self.layers),  # type: ignore[union-attr, operator]
            position=0,
            # One sentence has no padding, unless it was padded for a capture; a look is cheap on a CPU alone.
            padded=B > 1 or memory.mask.device.type != "cpu" or not bool(memory.mask.all()),
            lean=steps,
            absorbed=None if steps is None else steps.absorbed(projected),
        )

    def forward(self, tokens: Tensor, state: TransformerState, need_weights: bool = False) -> DecoderOutput:
        T = tokens.size(1)
        y = self.embedding(tokens, state.position, state.places(T))
        at: int | Step
        if T == 1 and state.caches:
            mask, at = None, state.step()
        else:
            assert state.size == 1, "rows of a beam go on one token at a time"
            assert state.first is None, "sentences that joined go on one token at a time"
            mask, at = causal(T, state.filled + T, tokens.device), state.filled
        weights: list[Tensor | None] = []
        seen = state.seen
        if state.lean is not None and isinstance(at, Step) and not need_weights:
            assert state.caches is not None
            y = state.lean.step(y.squeeze(1), state.memory, state.absorbed, state.looks(at), state.caches, at)
            return DecoderOutput(self.norm(y).unsqueeze(1), state.after(T), None)
        for i, layer in enumerate(self.layers):
            cache = state.caches[i] if state.caches else None
            y, found = layer(y, mask, state.memory[i], seen, cache, at, need_weights)
            weights.append(found)
        attentions = tuple(w for w in weights if w is not None) if need_weights else None
        return DecoderOutput(self.norm(y), state.after(T), attentions)

    def project(self, hidden: Tensor) -> Tensor:
        return self.output(hidden)
