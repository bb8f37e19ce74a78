"""LSTMN: an LSTM whose memory is a tape   (Cheng, Dong & Lapata 2016).

An LSTM presses all that it has read into one cell. Here every word keeps its own: a hidden tape (h_1 … h_{t-1}) and a
memory tape (c_1 … c_{t-1}). Before each step an *intra-attention* reads both, asking with the word and with what it
read last, and the step starts from the mixture:

    a_i = vᵀ tanh(W_h h_i + W_x x_t + W_h̃ h̃_{t-1}),  s = softmax(a),  [h̃_t; c̃_t] = Σ_{i<t} s_i [h_i; c_i]
    i, f, o, ĉ = σ, σ, σ, tanh of W [h̃_t; x_t]
    c_t = f ∘ c̃_t + i ∘ ĉ,  h_t = o ∘ tanh(c_t)                                                    (section 3.2)

The encoder reads the source so, left to right. The decoder reads the target so, and joins it to the source by an
*inter-attention*, in one of two ways (section 4): shallow fusion puts what was found into the input, deep fusion puts
it into the memory.

Chosen here: the target's tapes begin with where the encoder ended, h̃_0 = γ̃_0 = 0, the output is
Bahdanau's maxout of [h_t; y_{t-1}; what was found], and layers above the first read the states of the layer below.
Each step reads all that came before: time and, in training, space grow with the square of the length.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from saccade.attention.core import attend
from saccade.attention.dropout import Dropout
from saccade.attention.scores import Concat
from saccade.attention.watching import TAPE
from saccade.models.protocol import DecoderOutput, Memory
from saccade.models.rnn import Glimpse, RecurrentState


def unrounded(like: Tensor) -> torch.autocast:
    """In the weights' own precision: a memory that is mixed anew at every step must not be rounded at every step."""
    return torch.autocast(like.device.type, enabled=False)


@dataclass(frozen=True)
class Tape:
    """What a layer has written, in storage that is filled from the left: beside each entry its key."""

    keys: Tensor  # (B, 1, ≥ filled, E): W_h h_i, computed once, when the entry is written
    entries: Tensor  # (B, 1, ≥ filled, 2E): [h_i; c_i]
    filled: int = 0

    def append(self, key: Tensor, entry: Tensor) -> "Tape":
        """One more entry: in place where there is room, as in generation; a full tape grows, which training needs,
        for the backward pass reads what each step has read."""
        at = self.filled
        if at < self.keys.size(2):
            self.keys[:, 0, at], self.entries[:, 0, at] = key, entry
            return replace(self, filled=at + 1)
        keys = torch.cat([self.keys, key[:, None, None]], dim=2)
        return Tape(keys, torch.cat([self.entries, entry[:, None, None]], dim=2), at + 1)

    def written(self) -> tuple[Tensor, Tensor]:
        """Keys and entries so far."""
        return self.keys[:, :, : self.filled], self.entries[:, :, : self.filled]

    def hidden(self, last: int) -> Tensor:
        """The last h's, (B, last, E)."""
        return self.entries[:, 0, self.filled - last : self.filled, : self.keys.size(-1)]

    def select(self, indices: Tensor) -> "Tape":
        """Copies only what is filled: the rest of the storage has no content yet."""
        keys, entries = (part.new_empty(indices.numel(), *part.shape[1:]) for part in (self.keys, self.entries))
        for new, old in zip((keys, entries), self.written(), strict=True):
            new[:, :, : self.filled] = old.index_select(0, indices)
        return Tape(keys, entries, self.filled)


class LSTMNLayer(nn.Module):
    """An LSTM that starts each step from its tape   (Cheng et al. 2016, 3.2).

    The intra-attention is `concat`'s score, W [x_t; h̃_{t-1}; h_i] being the paper's three matrices side by side.
    """

    looks, heads = TAPE, 1

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.score = Concat(query_width=inputs + width, key_width=width, width=width)
        self.W = nn.Linear(inputs, 4 * width, bias=False)
        self.U = nn.Linear(width, 4 * width)
        for from_input, from_tape in zip(self.W.weight.data.chunk(4), self.U.weight.data.chunk(4), strict=True):
            nn.init.xavier_uniform_(from_input)
            nn.init.orthogonal_(from_tape)
        nn.init.zeros_(self.U.bias)
        self.U.bias.data.chunk(4)[1].fill_(1.0)  # the forget gate starts open

    def blank(self, batch: int, room: int = 0) -> Tape:
        """An empty tape with room for so many entries; one without room grows."""
        weight = self.U.weight
        return Tape(weight.new_empty(batch, 1, room, self.width), weight.new_empty(batch, 1, room, 2 * self.width))

    def write(self, tape: Tape, entry: Tensor) -> Tape:
        """Add [h; c] (B, 2E)."""
        return tape.append(self.score.prepare(entry[:, : self.width]), entry)

    def project_input(self, x: Tensor, columns: slice = slice(None)) -> Tensor:
        """The share of the gates that comes from some columns of the input, for as many steps as x has."""
        return x @ self.W.weight[:, columns].mT

    def step(
        self, x: Tensor, from_x: Tensor, tape: Tape, last: Tensor, transferred: Tensor | None = None
    ) -> tuple[Tape, Tensor]:
        """One step, from x (B, inputs), its share of the gates and h̃_{t-1}: the longer tape, and h̃_t.

        `transferred` is added to the new cell. An empty tape gives h̃ = c̃ = 0, where an LSTM starts too.
        """
        query = torch.cat([x, last], dim=-1)[:, None, None]
        read = attend(query, *tape.written(), score=self.score).context.flatten(1)
        h_tilde, c_tilde = read.chunk(2, dim=-1)
        i, f, o, c_hat = (from_x + self.U(h_tilde)).chunk(4, dim=-1)
        c = torch.sigmoid(f) * c_tilde + torch.sigmoid(i) * torch.tanh(c_hat)
        if transferred is not None:
            c = c + transferred
        h = torch.sigmoid(o) * torch.tanh(c)
        return tape.append(self.score.prepare(h), torch.cat([h, c], dim=-1)), h_tilde

    def forward(self, x: Tensor, tape: Tape, last: Tensor) -> tuple[Tape, Tensor]:
        """All steps of x (B, T, inputs)."""
        # Taken apart before the loop: the gradient of a slice is as large as what it was cut from.
        for x_t, from_x_t in zip(x.unbind(1), self.project_input(x).unbind(1), strict=True):
            tape, last = self.step(x_t, from_x_t, tape, last)
        return tape, last


class LSTMNEncoder(nn.Module):
    """Reads the source from left to right; its memory is both tapes of the top layer, [γ_j; α_j] a word.

    No state looks ahead, so what stands in the padding at the right reaches no word.
    """

    def __init__(self, embedding: nn.Embedding, layers: Sequence[LSTMNLayer], dropout: float) -> None:
        super().__init__()
        self.embedding = embedding
        self.layers = nn.ModuleList(layers)
        self.dropout = Dropout(dropout)

    def forward(self, source: Tensor, mask: Tensor) -> Memory:
        B, S = source.shape
        rows, last = torch.arange(B, device=mask.device), mask.sum(1) - 1
        x = self.embedding(source)
        finals = []
        with unrounded(x):
            for layer in self.layers:
                assert isinstance(layer, LSTMNLayer)
                tape, _ = layer(self.dropout(x), layer.blank(B), x.new_zeros(B, layer.width))
                x = tape.hidden(S)
                finals.append(tape.entries[rows, 0, last])
        return Memory(tape.entries[:, 0], mask, torch.stack(finals, dim=1))


@dataclass(frozen=True)
class LSTMNState(RecurrentState):
    """The target's tapes, one a layer; `recurrent` is h̃_{t-1} of each, `fed` is γ̃_{t-1}."""

    tapes: tuple[Tape, ...] = ()

    def select(self, indices: Tensor) -> "LSTMNState":
        rest = super().select(indices)
        assert isinstance(rest, LSTMNState)
        return replace(rest, tapes=tuple(tape.select(indices) for tape in self.tapes))


class Fused(NamedTuple):
    """What a layer that also looks at the source made of the words."""

    tape: Tape
    last: Tensor  # (B, E): h̃_T
    found: Tensor  # (B, T, E): γ̃_t of every step
    weights: Tensor | None  # (B, 1, T, S)


class Fusion(Protocol):
    """How a layer of the decoder is joined to the source."""

    def prepare(self, memory: Memory) -> tuple[Memory, Tensor]:
        """Once a sentence, from a memory of [γ; α]: what looks bring, and the keys that they are scored by."""

    def __call__(self, layer: LSTMNLayer, y: Tensor, state: LSTMNState, need_weights: bool) -> Fused:
        """The layer's steps over the words y (B, T, ·)."""


class ShallowFusion(nn.Module):
    """What was found goes into the input, in the manner of Bahdanau   (Cheng et al. 2016, 4).

    γ̃_t = attend(h_{t-1}, γ),  x_t = [y_{t-1}; γ̃_t]
    """

    def __init__(self, look: Glimpse) -> None:
        super().__init__()
        self.look = look

    def prepare(self, memory: Memory) -> tuple[Memory, Tensor]:
        hidden = _hidden(memory)
        return hidden, self.look.prepare(hidden)

    def forward(self, layer: LSTMNLayer, y: Tensor, state: LSTMNState, need_weights: bool) -> Fused:
        E = y.size(-1)
        from_y = layer.project_input(y, slice(0, E))  # for all steps at once: they wait for nothing
        W_found = layer.W.weight[:, E:].mT
        tape, last = state.tapes[0], state.recurrent[:, 0]
        found, weights = [], []
        for t, (y_t, from_y_t) in enumerate(zip(y.unbind(1), from_y.unbind(1), strict=True)):
            seen = self.look(tape.hidden(1).unsqueeze(1), state, state.position + t, need_weights)
            gamma = seen.context.flatten(1)
            tape, last = layer.step(torch.cat([y_t, gamma], dim=-1), torch.addmm(from_y_t, gamma, W_found), tape, last)
            found.append(gamma)
            weights.append(seen.weights)
        return Fused(tape, last, torch.stack(found, dim=1), _joined(weights))


class DeepFusion(nn.Module):
    """What was found goes into the memory, through a gate of its own   (Cheng et al. 2016, 4).

    b_j = uᵀ tanh(W_γ γ_j + W_x x_t + W_γ̃ γ̃_{t-1}),  p = softmax(b),  [γ̃_t; α̃_t] = Σ_j p_j [γ_j; α_j]
    r = σ(W_r [γ̃_t; x_t]),  c_t = r ∘ α̃_t + f ∘ c̃_t + i ∘ ĉ

    As `score` of `look`, `additive` and `concat` are the paper's, of the query [x_t; γ̃_{t-1}].
    """

    def __init__(self, look: Glimpse, word_width: int, width: int) -> None:
        super().__init__()
        self.look = look
        self.gate_from_word = nn.Linear(word_width, width)
        self.gate_from_source = nn.Linear(width, width, bias=False)
        nn.init.xavier_uniform_(self.gate_from_word.weight)
        nn.init.xavier_uniform_(self.gate_from_source.weight)
        nn.init.zeros_(self.gate_from_word.bias)

    def prepare(self, memory: Memory) -> tuple[Memory, Tensor]:
        return memory._replace(final=None), self.look.prepare(_hidden(memory))

    def forward(self, layer: LSTMNLayer, y: Tensor, state: LSTMNState, need_weights: bool) -> Fused:
        assert state.fed is not None
        from_y, gate_from_y = layer.project_input(y), self.gate_from_word(y)
        tape, last, gamma = state.tapes[0], state.recurrent[:, 0], state.fed
        found, weights = [], []
        each = zip(y.unbind(1), from_y.unbind(1), gate_from_y.unbind(1), strict=True)
        for t, (y_t, from_y_t, gate_t) in enumerate(each):
            query = torch.cat([y_t, gamma], dim=-1)[:, None, None]
            seen = self.look(query, state, state.position + t, need_weights)
            gamma, alpha = seen.context.flatten(1).chunk(2, dim=-1)
            r = torch.sigmoid(gate_t + self.gate_from_source(gamma))
            tape, last = layer.step(y_t, from_y_t, tape, last, transferred=r * alpha)
            found.append(gamma)
            weights.append(seen.weights)
        return Fused(tape, last, torch.stack(found, dim=1), _joined(weights))


def _hidden(memory: Memory) -> Memory:
    """The source's hidden tape γ alone."""
    return Memory(memory.states.chunk(2, dim=-1)[0], memory.mask)


def _joined(weights: list[Tensor | None]) -> Tensor | None:
    known = [part for part in weights if part is not None]
    return torch.cat(known, dim=2) if known else None


class LSTMNDecoder(nn.Module):
    """Target ids and a memory of [γ; α] → what comes next. The first layer looks at the source, as `fusion` says."""

    attends = True

    def __init__(
        self,
        embedding: nn.Embedding,
        output: nn.Linear,
        layers: Sequence[LSTMNLayer],
        fusion: Fusion,
        readout: nn.Module,
        dropout: float,
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.output = output
        self.layers = nn.ModuleList(layers)
        self.fusion = fusion
        self.readout = readout
        self.dropout = Dropout(dropout)

    def init_state(self, memory: Memory, capacity: int | None = None) -> LSTMNState:
        assert memory.final is not None, "the target's tapes begin where an LSTMN encoder ended"
        B, room = memory.states.size(0), 0 if capacity is None else 1 + capacity
        tapes = []
        with unrounded(memory.states):
            for i, layer in enumerate(self.layers):
                assert isinstance(layer, LSTMNLayer)
                tapes.append(layer.write(layer.blank(B, room), memory.final[:, i]))
            source, keys = self.fusion.prepare(memory)
        nothing = torch.zeros_like(memory.final.chunk(2, dim=-1)[0])  # (B, layers, E)
        return LSTMNState(nothing, source, keys, nothing[:, 0], tapes=tuple(tapes))

    def forward(self, tokens: Tensor, state: LSTMNState, need_weights: bool = False) -> DecoderOutput:
        T = tokens.size(1)
        y = self.dropout(self.embedding(tokens))
        first, *above = self.layers
        assert isinstance(first, LSTMNLayer)
        with unrounded(y):
            fused = self.fusion(first, y, state, need_weights)
            tapes, lasts = [fused.tape], [fused.last]
            for i, layer in enumerate(above, start=1):
                tape, last = layer(self.dropout(tapes[-1].hidden(T)), state.tapes[i], state.recurrent[:, i])
                tapes.append(tape)
                lasts.append(last)
        hidden = self.readout(torch.cat([tapes[-1].hidden(T), y, fused.found], dim=-1))
        recurrent, fed = torch.stack(lasts, dim=1), fused.found[:, -1]
        after = replace(state, recurrent=recurrent, fed=fed, position=state.position + T, tapes=tuple(tapes))
        attentions = None if fused.weights is None else (fused.weights,)
        return DecoderOutput(self.dropout(hidden), after, attentions)

    def project(self, hidden: Tensor) -> Tensor:
        return self.output(hidden)
