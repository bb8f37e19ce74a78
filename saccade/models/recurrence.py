"""Recurrent layers and encoders, with states that are explicit.

The recurrent unit is cuDNN's: its GRU applies the reset gate after the recurrent product, Cho's before it. Only the
former has a fused kernel; what the difference costs in quality has not been measured here.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from saccade.attention.dropout import Dropout
from saccade.models.protocol import Memory

UNITS: dict[str, Callable[..., nn.RNNBase]] = {"gru": nn.GRU, "lstm": nn.LSTM, "tanh": nn.RNN}


def initialise_recurrent(rnn: nn.RNNBase) -> None:
    """Orthogonal recurrent matrices (Bahdanau et al. 2015, B.1), Xavier inputs, an LSTM's forget gate open."""
    gates = {nn.LSTM: 4, nn.GRU: 3, nn.RNN: 1}[type(rnn)]
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
    """One layer whose state is explicit: (B, E), and (B, 2E) for an LSTM (hidden; cell)."""

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

    def start(self, rows: int) -> Tensor:
        """The state before anything was read: zeros, in the weights' own precision."""
        return self.weights[0].new_zeros(rows, self.state_width)

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """All steps of x (B, T, inputs): the hidden states (B, T, E) and the last full state."""
        parts = [part.unsqueeze(0).contiguous() for part in state.split(self.width, dim=-1)]
        outputs, final = self.rnn(x, tuple(parts) if self.unit == "lstm" else parts[0])
        return outputs, (torch.cat(final, dim=-1) if self.unit == "lstm" else final).squeeze(0)

    def project_input(self, x: Tensor, columns: slice) -> Tensor:
        """The share of the gates that comes from some columns of the input, for as many steps as x has."""
        return x @ self.input_matrix(columns)

    def input_matrix(self, columns: slice) -> Tensor:
        """(inputs, gates · E): taken before a loop over time, since each slice costs a whole W in the backward pass."""
        return self.weights[0][:, columns].mT

    def step(self, gates_from_input: Tensor, state: Tensor) -> Tensor:
        """One step, from what the inputs give to the gates (without biases): (B, gates · E), state → state.

        GRU:   r = σ(i_r + h_r), z = σ(i_z + h_z), n = tanh(i_n + r ∘ h_n), s' = (1 - z) ∘ n + z ∘ s
        LSTM:  c' = σ(f) ∘ c + σ(i) ∘ tanh(g),  h' = σ(o) ∘ tanh(c')
        tanh:  s' = tanh(i + h)
        """
        hidden, *cells = state.split(self.width, dim=-1)
        _, U, input_bias, state_bias = self.weights
        x = gates_from_input + input_bias
        h = torch.addmm(state_bias, hidden, U.mT)
        if self.unit == "tanh":
            return torch.tanh(x + h).to(state.dtype)
        if self.unit == "gru":
            both = 2 * self.width
            r, z = torch.sigmoid(x[:, :both] + h[:, :both]).chunk(2, dim=-1)
            n = torch.tanh(x[:, both:] + r * h[:, both:])
            return n + z * (hidden - n)
        i, f, g, o = (x + h).chunk(4, dim=-1)
        cell = torch.sigmoid(f) * cells[0] + torch.sigmoid(i) * torch.tanh(g)
        return torch.cat([torch.sigmoid(o) * torch.tanh(cell), cell], dim=-1)


class RecurrentStack(nn.Module):
    """Layers on top of each other, with dropout between them and one explicit state: (B, layers, ·)."""

    def __init__(self, unit: str, inputs: int, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(RecurrentLayer(unit, width if i else inputs, width) for i in range(layers))
        self.dropout = Dropout(dropout)

    def step(self, from_input: Tensor, states: Sequence[Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """One step, from what the inputs give to the first layer's gates: the top's hidden state, all states."""
        finals: list[Tensor] = []
        for i, layer in enumerate(self.layers):
            assert isinstance(layer, RecurrentLayer)
            if i:
                from_input = layer.project_input(self.dropout(finals[-1][:, : layer.width]), slice(None))
            finals.append(layer.step(from_input, states[i]))
        return finals[-1][:, : self.first.width], tuple(finals)

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


def reverse(x: Tensor, mask: Tensor) -> Tensor:
    """Turn the real positions of each row around and leave the padding at the right: (B, S)."""
    lengths = mask.sum(1, keepdim=True)
    places = torch.arange(mask.size(1), device=mask.device).expand_as(mask)
    return x.gather(1, torch.where(mask, lengths - 1 - places, places))


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
        if self.reverse_source:  # read backwards, but state j stays that of word j
            turned = mask.sum(1, keepdim=True) - 1 - torch.arange(mask.size(1), device=mask.device)
            states = states.gather(1, turned.clamp(min=0).unsqueeze(-1).expand_as(states))
        parts = finals if isinstance(finals, tuple) else (finals,)
        # cuDNN gives (layers · directions, B, E); the directions of a layer belong side by side.
        by_layer = [part.unflatten(0, (self.rnn.num_layers, -1)).permute(2, 0, 1, 3).flatten(2) for part in parts]
        return states, torch.cat(by_layer, dim=-1)

    def forward(self, source: Tensor, mask: Tensor) -> Memory:
        states, final = self.read(source, mask)
        return Memory(states, mask, final)


class SentenceVector(nn.Module):
    """An encoder whose memory is one vector: all that a decoder without attention ever sees of the source."""

    def __init__(self, encoder: RecurrentEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, source: Tensor, mask: Tensor) -> Memory:
        _, finals = self.encoder.read(source, mask)
        return Memory(finals.flatten(1).unsqueeze(1), mask[:, :1])  # (B, 1, layers · ·)
