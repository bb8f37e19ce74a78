"""Recurrent encoder–decoders.

| paper | what the decoder gets | wiring |
|---|---|---|
| Cho et al. 2014 | one vector c, at every step | s_t = f(s_{t-1}, [y_{t-1}; c]),  s_0 = tanh(V c) |
| Sutskever et al. 2014 | one vector, as its initial state | s_t = f(s_{t-1}, y_{t-1}),  s_0 = the encoder's last |
| Bahdanau et al. 2015 | a fresh vector c_t at every step, by attention | s_t = f(s_{t-1}, [y_{t-1}; c_t]) |

The recurrent unit is cuDNN's: its GRU applies the reset gate after the recurrent product, Cho's before it; the two
learn alike and only the former has a fused kernel. Where a decoder's wiring does not make step t wait for an attention
computed from step t-1, all steps run in one fused call; the loop over time is Bahdanau's first layer alone.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from saccade.attention.core import attend
from saccade.attention.dropout import Dropout
from saccade.attention.masks import over_keys
from saccade.attention.scores import Score
from saccade.models.protocol import DecoderOutput, Memory

UNITS: dict[str, Callable[..., nn.RNNBase]] = {"gru": nn.GRU, "lstm": nn.LSTM}


def reverse(x: Tensor, mask: Tensor) -> Tensor:
    """Turn the real positions of each row around and leave the padding at the right: (B, S)."""
    lengths = mask.sum(1, keepdim=True)
    places = torch.arange(mask.size(1), device=mask.device).expand_as(mask)
    return x.gather(1, torch.where(mask, lengths - 1 - places, places))


def initialise_recurrent(rnn: nn.RNNBase) -> None:
    """Orthogonal recurrent matrices (Bahdanau et al. 2015, B.1), Xavier inputs, an LSTM's forget gate open."""
    gates = 4 if isinstance(rnn, nn.LSTM) else 3
    for name, parameter in rnn.named_parameters():
        for gate in parameter.data.chunk(gates):
            if "weight_hh" in name:
                nn.init.orthogonal_(gate)
            elif "weight_ih" in name:
                nn.init.xavier_uniform_(gate)
            else:
                nn.init.zeros_(gate)
        if isinstance(rnn, nn.LSTM) and "bias_ih" in name:
            parameter.data.chunk(gates)[1].fill_(1.0)


class RecurrentLayer(nn.Module):
    """One layer whose state is explicit: (B, E) for a GRU, (B, 2E) for an LSTM (hidden; cell)."""

    def __init__(self, unit: str, inputs: int, width: int) -> None:
        super().__init__()
        self.unit = unit
        self.width = width
        self.state_width = width * (2 if unit == "lstm" else 1)
        self.rnn = UNITS[unit](inputs, width, batch_first=True)
        initialise_recurrent(self.rnn)

    @property
    def weights(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """W and U (inputs and state to gates), and the biases of both."""
        return tuple(self.rnn.all_weights[0])  # type: ignore[return-value]

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """All steps of x (B, T, inputs): the hidden states (B, T, E) and the last full state."""
        parts = [part.unsqueeze(0).contiguous() for part in state.split(self.width, dim=-1)]
        outputs, final = self.rnn(x, tuple(parts) if self.unit == "lstm" else parts[0])
        return outputs, (torch.cat(final, dim=-1) if self.unit == "lstm" else final).squeeze(0)

    def project_input(self, x: Tensor, columns: slice) -> Tensor:
        """The share of the gates that comes from some columns of the input, for as many steps as x has."""
        return x @ self.weights[0][:, columns].mT

    def step(self, gates_from_input: Tensor, state: Tensor) -> Tensor:
        """One step, from what the inputs give to the gates (without biases): (B, gates · E), state → state.

        GRU:   r = σ(i_r + h_r), z = σ(i_z + h_z), n = tanh(i_n + r ∘ h_n), s' = (1 - z) ∘ n + z ∘ s
        LSTM:  c' = σ(f) ∘ c + σ(i) ∘ tanh(g),  h' = σ(o) ∘ tanh(c')
        """
        hidden = state[:, : self.width]
        _, U, input_bias, state_bias = self.weights
        x = gates_from_input + input_bias
        h = torch.addmm(state_bias, hidden, U.mT)
        if self.unit == "gru":
            both = 2 * self.width
            r, z = torch.sigmoid(x[:, :both] + h[:, :both]).chunk(2, dim=-1)
            n = torch.tanh(x[:, both:] + r * h[:, both:])
            return n + z * (hidden - n)
        i, f, g, o = (x + h).chunk(4, dim=-1)
        cell = torch.sigmoid(f) * state[:, self.width :] + torch.sigmoid(i) * torch.tanh(g)
        return torch.cat([torch.sigmoid(o) * torch.tanh(cell), cell], dim=-1)


class Maxout(nn.Module):
    """Deep output, one maxout layer: t_i = max(t̃_{2i-1}, t̃_{2i}), t̃ = W [s; y; c]   (Bahdanau et al. 2015, A.2.2)."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, 2 * width)
        nn.init.xavier_uniform_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).unflatten(-1, (-1, 2)).amax(-1)


class RecurrentStack(nn.Module):
    """Layers on top of each other, with dropout between them and one explicit state: (B, layers, ·)."""

    def __init__(self, unit: str, inputs: int, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(RecurrentLayer(unit, width if i else inputs, width) for i in range(layers))
        self.dropout = Dropout(dropout)

    @property
    def first(self) -> RecurrentLayer:
        layer = self.layers[0]
        assert isinstance(layer, RecurrentLayer)
        return layer

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        finals = []
        for i, layer in enumerate(self.layers):
            x, final = layer(self.dropout(x) if i else x, state[:, i])
            finals.append(final)
        return x, torch.stack(finals, dim=1)


class RecurrentEncoder(nn.Module):
    """Reads the source, in one direction or in both: h_j = [h→_j; h←_j]   (Bahdanau et al. 2015, 3.2)."""

    def __init__(
        self,
        embedding: nn.Embedding,
        unit: str,
        width: int,
        layers: int,
        dropout: float,
        *,
        bidirectional: bool,
        reverse_source: bool,
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.dropout = Dropout(dropout)
        self.reverse_source = reverse_source
        self.rnn = UNITS[unit](
            embedding.embedding_dim,
            width,
            num_layers=layers,
            batch_first=True,
            bidirectional=bidirectional,
            dropout=dropout if layers > 1 else 0.0,
        )
        initialise_recurrent(self.rnn)
        self.width = width * (2 if bidirectional else 1)  # of a position's state
        self.state_width = self.width * (2 if unit == "lstm" else 1)  # of a layer's last state

    def read(self, source: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """States of the top layer (B, S, ·) and the last states of every layer (B, layers, ·), hidden before cell."""
        if self.reverse_source:
            source = reverse(source, mask)
        embedded = self.dropout(self.embedding(source))
        packed = pack_padded_sequence(embedded, mask.sum(1).cpu(), batch_first=True, enforce_sorted=False)
        outputs, finals = self.rnn(packed)
        states, _ = pad_packed_sequence(outputs, batch_first=True, total_length=source.size(1))
        parts = finals if isinstance(finals, tuple) else (finals,)
        # cuDNN gives (layers · directions, B, E); the directions of a layer belong side by side.
        by_layer = [part.unflatten(0, (self.rnn.num_layers, -1)).permute(2, 0, 1, 3).flatten(2) for part in parts]
        return states, torch.cat(by_layer, dim=-1)

    def forward(self, source: Tensor, mask: Tensor) -> Memory:
        return Memory(self.read(source, mask)[0], mask)


class SentenceVector(nn.Module):
    """An encoder whose memory is one vector: all that a decoder without attention ever sees of the source."""

    def __init__(self, encoder: RecurrentEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, source: Tensor, mask: Tensor) -> Memory:
        _, finals = self.encoder.read(source, mask)
        return Memory(finals.flatten(1).unsqueeze(1), mask[:, :1])  # (B, 1, layers · ·)


@dataclass(frozen=True)
class RecurrentState:
    """The decoder's recurrent state, and what it reads of the source."""

    recurrent: Tensor  # (B, layers, ·)
    memory: Memory
    keys: Tensor | None = None  # (B, 1, S, ·): the memory as the score prepared it

    def select(self, indices: Tensor) -> "RecurrentState":
        keys = None if self.keys is None else self.keys.index_select(0, indices)
        return RecurrentState(self.recurrent.index_select(0, indices), self.memory.select(indices), keys)

    def after(self, recurrent: Tensor) -> "RecurrentState":
        return RecurrentState(recurrent, self.memory, self.keys)


class _RecurrentDecoder(nn.Module):
    """What the decoders share: the embedding, the stack, and the way out."""

    def __init__(
        self, embedding: nn.Embedding, output: nn.Linear, stack: RecurrentStack, readout: nn.Module, dropout: float
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.output = output
        self.stack = stack
        self.readout = readout
        self.dropout = Dropout(dropout)

    def project(self, hidden: Tensor) -> Tensor:
        return self.output(hidden)


class SutskeverDecoder(_RecurrentDecoder):
    """The source vector is the initial state and nothing else   (Sutskever et al. 2014, 2).

    p(y_t | …) = softmax(W s_t); `readout` only brings s_t to the width of the output embedding.
    """

    def init_state(self, memory: Memory, capacity: int | None = None) -> RecurrentState:
        return RecurrentState(memory.states.squeeze(1).unflatten(1, (len(self.stack.layers), -1)), memory)

    def forward(self, tokens: Tensor, state: RecurrentState, need_weights: bool = False) -> DecoderOutput:
        outputs, recurrent = self.stack(self.dropout(self.embedding(tokens)), state.recurrent)
        return DecoderOutput(self.dropout(self.readout(outputs)), state.after(recurrent), None)


class ChoDecoder(_RecurrentDecoder):
    """The source vector goes into every step and into the output   (Cho et al. 2014, 2.2, A.1).

    c = tanh(V h_S),  s_0 = tanh(V' c),  s_t = f(s_{t-1}, [y_{t-1}; c]),  t_t = maxout([s_t; y_{t-1}; c])
    """

    def __init__(
        self,
        embedding: nn.Embedding,
        output: nn.Linear,
        stack: RecurrentStack,
        readout: nn.Module,
        dropout: float,
        vector_width: int,
        context_width: int,
    ) -> None:
        super().__init__(embedding, output, stack, readout, dropout)
        self.summary = nn.Linear(vector_width, context_width)
        self.bridge = Bridge(context_width, stack)

    def init_state(self, memory: Memory, capacity: int | None = None) -> RecurrentState:
        context = torch.tanh(self.summary(memory.states))  # (B, 1, ·)
        return RecurrentState(self.bridge(context.squeeze(1)), Memory(context, memory.mask))

    def forward(self, tokens: Tensor, state: RecurrentState, need_weights: bool = False) -> DecoderOutput:
        y = self.dropout(self.embedding(tokens))
        c = state.memory.states.expand(-1, tokens.size(1), -1)
        outputs, recurrent = self.stack(torch.cat([y, c], dim=-1), state.recurrent)
        hidden = self.readout(torch.cat([outputs, y, c], dim=-1))
        return DecoderOutput(self.dropout(hidden), state.after(recurrent), None)


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


class BahdanauDecoder(_RecurrentDecoder):
    """Before each step, look at the source from where the last one ended   (Bahdanau et al. 2015, A.1.2, A.2.2).

    s_0 = tanh(W_s h←_1)
    c_t = attend(s_{t-1}, h),  s_t = f(s_{t-1}, [y_{t-1}; c_t]),  t_t = maxout([s_{t-1}; y_{t-1}; c_t])

    Layers above the first (the paper has one) read the states of the layer below.
    """

    def __init__(
        self,
        embedding: nn.Embedding,
        output: nn.Linear,
        stack: RecurrentStack,
        readout: nn.Module,
        dropout: float,
        memory_width: int,
        score: Score,
    ) -> None:
        super().__init__(embedding, output, stack, readout, dropout)
        self.score = score
        self.bridge = Bridge(memory_width // 2, stack)

    def init_state(self, memory: Memory, capacity: int | None = None) -> RecurrentState:
        backward_first = memory.states[:, 0].chunk(2, dim=-1)[1]  # h←_1 has read the whole sentence
        keys = self.score.prepare(memory.states).unsqueeze(1)
        return RecurrentState(self.bridge(backward_first), memory, keys)

    def forward(self, tokens: Tensor, state: RecurrentState, need_weights: bool = False) -> DecoderOutput:
        assert state.keys is not None
        y = self.dropout(self.embedding(tokens))
        first = self.stack.first
        E = y.size(-1)
        from_y = first.project_input(y, slice(0, E))  # for all steps at once: they wait for nothing
        values, mask = state.memory.states.unsqueeze(1), over_keys(state.memory.mask)
        s = state.recurrent[:, 0]
        states, contexts = [s], []
        weights: list[Tensor] = []
        for t in range(tokens.size(1)):
            query = s[:, None, None, : first.width]
            found = attend(query, state.keys, values, score=self.score, mask=mask, need_weights=need_weights)
            context = found.context[:, 0, 0]
            s = first.step(from_y[:, t] + first.project_input(context, slice(E, None)), s)
            states.append(s)
            contexts.append(context)
            if found.weights is not None:
                weights.append(found.weights)
        below = torch.stack(states, dim=1)[..., : first.width]  # s_0 … s_T
        c = torch.stack(contexts, dim=1)
        before, finals = below[:, :-1], [s]
        x = below[:, 1:]
        for i, layer in enumerate(list(self.stack.layers)[1:], start=1):
            x, final = layer(self.dropout(x), state.recurrent[:, i])
            before = torch.cat([state.recurrent[:, i : i + 1, : first.width], x[:, :-1]], dim=1)
            finals.append(final)
        hidden = self.readout(torch.cat([before, y, c], dim=-1))
        attentions = (torch.cat(weights, dim=2),) if need_weights else None
        return DecoderOutput(self.dropout(hidden), state.after(torch.stack(finals, dim=1)), attentions)
