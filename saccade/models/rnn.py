"""Recurrent decoders.

| paper | what the decoder gets | wiring |
|---|---|---|
| Cho et al. 2014 | one vector c, at every step | s_t = f(s_{t-1}, [y_{t-1}; c]),  s_0 = tanh(V c) |
| Sutskever et al. 2014 | one vector, as its initial state | s_t = f(s_{t-1}, y_{t-1}),  s_0 = the encoder's last |
| Bahdanau et al. 2015 | a fresh vector c_t at every step, by attention | s_t = f(s_{t-1}, [y_{t-1}; c_t]) |
| Luong et al. 2015 | … from the state after the step | h_t = f(h_{t-1}, [y_{t-1}; h̃_{t-1}]),  h̃_t = tanh(W [c; h]) |
| Kalchbrenner & Blunsom 2013 | one vector, made by convolutions, at every step | `rctm` |
| Wu et al. 2016 | a fresh vector for all of many layers, from the lowest | `gnmt` |

Where a decoder's wiring does not make step t wait for an attention computed from step t-1, all steps run in one fused
call; loops over time are the first layer of Bahdanau's and of Wu's decoder (`look_and_step`) and Luong's input feeding
alone.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from saccade.attention.core import Attention, attend
from saccade.attention.dropout import Dropout
from saccade.attention.masks import over_keys
from saccade.attention.scores import Score
from saccade.attention.watching import MEMORY
from saccade.attention.windows import Window
from saccade.models.protocol import DecoderOutput, Memory
from saccade.models.recurrence import RecurrentLayer, RecurrentStack


class Maxout(nn.Module):
    """Deep output, one maxout layer: t_i = max(t̃_{2i-1}, t̃_{2i}), t̃ = W [s; y; c]   (Bahdanau et al. 2015, A.2.2)."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, 2 * width)
        nn.init.xavier_uniform_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).unflatten(-1, (-1, 2)).amax(-1)


class Bridge(nn.Module):
    """s_0 = tanh(W x) for every layer of a stack; an LSTM's cells start at zero."""

    def __init__(self, inputs: int, stack: RecurrentStack) -> None:
        super().__init__()
        first = stack.first
        self.layers, self.width, self.state_width = len(stack.layers), first.width, first.state_width
        self.linear = nn.Linear(inputs, self.layers * self.width)

    def forward(self, x: Tensor) -> Tensor:
        # In the weights' own precision: a state carried through a sentence must not be rounded at every step.
        hidden = torch.tanh(self.linear(x)).to(self.linear.weight.dtype).unflatten(-1, (self.layers, self.width))
        return nn.functional.pad(hidden, (0, self.state_width - self.width))


class HandOver(nn.Module):
    """Where the encoder ended is where the decoder starts; where their widths differ, through a matrix."""

    def __init__(self, encoder_width: int, decoder_width: int) -> None:
        super().__init__()
        self.linear = nn.Identity() if encoder_width == decoder_width else nn.Linear(encoder_width, decoder_width)

    def forward(self, memory: Memory) -> Tensor:
        assert memory.final is not None, "a decoder that starts where its encoder ended needs a recurrent encoder"
        final = self.linear(memory.final)
        return final.to(memory.final.dtype)


@dataclass(frozen=True)
class RecurrentState:
    """The decoder's recurrent state, and what it reads of the source."""

    recurrent: Tensor  # (B, layers, ·)
    memory: Memory
    keys: Tensor | None = None  # (B, 1, S, ·): the memory as the score prepared it
    fed: Tensor | None = None  # (B, ·): the last attentional vector, where it is fed back
    position: int = 0  # of the next target token

    def select(self, indices: Tensor) -> "RecurrentState":
        return replace(
            self,
            recurrent=self.recurrent.index_select(0, indices),
            memory=self.memory.select(indices),
            keys=None if self.keys is None else self.keys.index_select(0, indices),
            fed=None if self.fed is None else self.fed.index_select(0, indices),
        )

    def after(self, recurrent: Tensor, steps: int, fed: Tensor | None = None) -> "RecurrentState":
        return replace(self, recurrent=recurrent, fed=fed, position=self.position + steps)


class Glimpse(nn.Module):
    """A look at the memory: a score over a window of it."""

    looks, heads = MEMORY, 1

    def __init__(self, score: Score, window: Window) -> None:
        super().__init__()
        self.score = score
        self.window = window

    def forward(self, queries: Tensor, state: RecurrentState, position: int, need_weights: bool) -> Attention:
        """Queries (B, 1, Q, ·), the first of which stands at target position `position`."""
        assert state.keys is not None
        mask, normalize = self.window(queries, position, over_keys(state.memory.mask))
        return attend(
            queries,
            state.keys,
            state.memory.states.unsqueeze(1),
            score=self.score.at(position),
            mask=mask,
            normalize=normalize,
            need_weights=need_weights,
        )

    def prepare(self, memory: Memory) -> Tensor:
        """What `state.keys` holds, (B, 1, S, ·)."""
        return self.score.prepare(memory.states).unsqueeze(1)


class Walk(NamedTuple):
    """Where a layer went that looks at the source before each step."""

    hidden: Tensor  # (B, T + 1, ·): s_0 … s_T
    contexts: Tensor  # (B, T, ·): c_1 … c_T
    final: Tensor  # (B, ·): the full state after the last step
    weights: Tensor | None  # (B, 1, T, S)


def look_and_step(layer: RecurrentLayer, look: Glimpse, y: Tensor, state: RecurrentState, need_weights: bool) -> Walk:
    """c_t = attend(s_{t-1}, h),  s_t = f(s_{t-1}, [y_t; c_t]): each step waits for where the last one ended."""
    E = y.size(-1)
    from_y = layer.project_input(y, slice(0, E))  # for all steps at once: they wait for nothing
    W_c = layer.input_matrix(slice(E, None))
    s = state.recurrent[:, 0]
    states, contexts = [s], []
    weights: list[Tensor] = []
    # Unbound, not from_y[:, t]: in the backward pass each such slice is as large as all of from_y.
    for t, from_y_t in enumerate(from_y.unbind(1)):
        found = look(s[:, None, None, : layer.width], state, state.position + t, need_weights)
        context = found.context[:, 0, 0]
        s = layer.step(torch.addmm(from_y_t, context, W_c), s)
        states.append(s)
        contexts.append(context)
        if found.weights is not None:
            weights.append(found.weights)
    hidden = torch.stack(states, dim=1)[..., : layer.width]
    return Walk(hidden, torch.stack(contexts, dim=1), s, torch.cat(weights, dim=2) if weights else None)


class Parts(NamedTuple):
    """What every recurrent decoder is made of."""

    embedding: nn.Embedding
    output: nn.Linear
    stack: RecurrentStack
    readout: nn.Module
    dropout: float


class RecurrentDecoder(nn.Module):
    """What the decoders share: the embedding, the stack, and the way out."""

    def __init__(self, parts: Parts) -> None:
        super().__init__()
        self.embedding = parts.embedding
        self.output = parts.output
        self.stack = parts.stack
        self.readout = parts.readout
        self.dropout = Dropout(parts.dropout)

    def project(self, hidden: Tensor) -> Tensor:
        return self.output(hidden)


class SutskeverDecoder(RecurrentDecoder):
    """The source vector is the initial state and nothing else   (Sutskever et al. 2014, 2).

    p(y_t | …) = softmax(W s_t); `readout` only brings s_t to the width of the output embedding.
    """

    attends = False

    def init_state(self, memory: Memory, capacity: int | None = None) -> RecurrentState:
        return RecurrentState(memory.states.squeeze(1).unflatten(1, (len(self.stack.layers), -1)), memory)

    def forward(self, tokens: Tensor, state: RecurrentState, need_weights: bool = False) -> DecoderOutput:
        outputs, recurrent = self.stack(self.dropout(self.embedding(tokens)), state.recurrent)
        return DecoderOutput(self.dropout(self.readout(outputs)), state.after(recurrent, tokens.size(1)), None)


class ChoDecoder(RecurrentDecoder):
    """The source vector goes into every step and into the output   (Cho et al. 2014, 2.2, A.1).

    c = tanh(V h_S),  s_0 = tanh(V' c),  s_t = f(s_{t-1}, [y_{t-1}; c]),  t_t = maxout([s_t; y_{t-1}; c])
    """

    attends = False

    def __init__(self, parts: Parts, vector_width: int, context_width: int) -> None:
        super().__init__(parts)
        self.summary = nn.Linear(vector_width, context_width)
        self.bridge = Bridge(context_width, parts.stack)

    def init_state(self, memory: Memory, capacity: int | None = None) -> RecurrentState:
        context = torch.tanh(self.summary(memory.states))  # (B, 1, ·)
        return RecurrentState(self.bridge(context.squeeze(1)), Memory(context, memory.mask))

    def forward(self, tokens: Tensor, state: RecurrentState, need_weights: bool = False) -> DecoderOutput:
        y = self.dropout(self.embedding(tokens))
        c = state.memory.states.expand(-1, tokens.size(1), -1)
        outputs, recurrent = self.stack(torch.cat([y, c], dim=-1), state.recurrent)
        hidden = self.readout(torch.cat([outputs, y, c], dim=-1))
        return DecoderOutput(self.dropout(hidden), state.after(recurrent, tokens.size(1)), None)


class BahdanauDecoder(RecurrentDecoder):
    """Before each step, look at the source from where the last one ended   (Bahdanau et al. 2015, A.1.2, A.2.2).

    s_0 = tanh(W_s h←_1)
    c_t = attend(s_{t-1}, h),  s_t = f(s_{t-1}, [y_{t-1}; c_t]),  t_t = maxout([s_{t-1}; y_{t-1}; c_t])

    Layers above the first (the paper has one) read the states of the layer below.
    """

    attends = True

    def __init__(self, parts: Parts, memory_width: int, look: Glimpse) -> None:
        super().__init__(parts)
        self.look = look
        self.bridge = Bridge(memory_width // 2, parts.stack)

    def init_state(self, memory: Memory, capacity: int | None = None) -> RecurrentState:
        backward_first = memory.states[:, 0].chunk(2, dim=-1)[1]  # h←_1 has read the whole sentence
        return RecurrentState(self.bridge(backward_first), memory._replace(final=None), self.look.prepare(memory))

    def forward(self, tokens: Tensor, state: RecurrentState, need_weights: bool = False) -> DecoderOutput:
        y = self.dropout(self.embedding(tokens))
        width = self.stack.first.width
        walk = look_and_step(self.stack.first, self.look, y, state, need_weights)
        before, x, finals = walk.hidden[:, :-1], walk.hidden[:, 1:], [walk.final]
        for i, layer in enumerate(list(self.stack.layers)[1:], start=1):
            x, final = layer(self.dropout(x), state.recurrent[:, i])
            before = torch.cat([state.recurrent[:, i : i + 1, :width], x[:, :-1]], dim=1)
            finals.append(final)
        hidden = self.readout(torch.cat([before, y, walk.contexts], dim=-1))
        attentions = (walk.weights,) if walk.weights is not None else None
        return DecoderOutput(self.dropout(hidden), state.after(torch.stack(finals, dim=1), tokens.size(1)), attentions)


class LuongDecoder(RecurrentDecoder):
    """Step first, then look from where the step has led   (Luong et al. 2015, 3 and 3.3).

    h_t = f(h_{t-1}, [y_{t-1}; h̃_{t-1}]),  c_t = attend(h_t, h̄),  h̃_t = tanh(W_c [c_t; h_t])

    h̃_t, the attentional vector, is what the output matrix reads, and with input feeding what the next step is told.
    Without input feeding no step waits for an attention: all run in one fused call.
    """

    attends = True

    def __init__(self, parts: Parts, hand_over: HandOver, look: Glimpse, input_feeding: bool) -> None:
        super().__init__(parts)
        self.hand_over = hand_over
        self.look = look
        self.input_feeding = input_feeding

    def init_state(self, memory: Memory, capacity: int | None = None) -> RecurrentState:
        recurrent = self.hand_over(memory)
        fed = recurrent.new_zeros(recurrent.size(0), self.output.in_features) if self.input_feeding else None
        return RecurrentState(recurrent, memory._replace(final=None), self.look.prepare(memory), fed)

    def forward(self, tokens: Tensor, state: RecurrentState, need_weights: bool = False) -> DecoderOutput:
        y = self.dropout(self.embedding(tokens))
        if state.fed is None:
            h, recurrent = self.stack(y, state.recurrent)
            found = self.look(h.unsqueeze(1), state, state.position, need_weights)
            hidden = self.attentional(found.context[:, 0], h)
            weights = found.weights
            fed = None
        else:
            hidden, weights, recurrent, fed = self._feeding(y, state, need_weights)
        attentions = (weights,) if need_weights and weights is not None else None
        return DecoderOutput(self.dropout(hidden), state.after(recurrent, tokens.size(1), fed), attentions)

    def attentional(self, context: Tensor, h: Tensor) -> Tensor:
        """h̃ = tanh(W_c [c; h])."""
        return torch.tanh(self.readout(torch.cat([context, h], dim=-1)))

    def _feeding(
        self, y: Tensor, state: RecurrentState, need_weights: bool
    ) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        assert state.fed is not None
        first, E = self.stack.first, y.size(-1)
        from_y, W_fed = first.project_input(y, slice(0, E)), first.input_matrix(slice(E, None))
        states, fed = state.recurrent.unbind(1), state.fed
        hidden, weights = [], []
        for t, from_y_t in enumerate(from_y.unbind(1)):
            h, states = self.stack.step(torch.addmm(from_y_t, fed, W_fed), states)
            found = self.look(h[:, None, None], state, state.position + t, need_weights)
            fed = self.attentional(found.context[:, 0, 0], h)
            hidden.append(fed)
            if found.weights is not None:
                weights.append(found.weights)
        recurrent = torch.stack(states, dim=1)
        return torch.stack(hidden, dim=1), torch.cat(weights, dim=2) if weights else None, recurrent, fed
