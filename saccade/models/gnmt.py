"""Google's neural machine translation system: many LSTM layers with residual connections   (Wu et al. 2016, 3).

    c^i_t, m^i_t = LSTM_i(c^i_{t-1}, m^i_{t-1}, x^{i-1}_t),   x^i_t = m^i_t + x^{i-1}_t   (eq. 5 and 6)

The sum starts at the third layer from the bottom, in encoder and decoder (fig. 1): the second layer's input is that of
both directions, or of the lowest decoder layer, and x^2_t = m^2_t.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from saccade.attention.dropout import Dropout
from saccade.models.protocol import DecoderOutput, Memory
from saccade.models.recurrence import RecurrentEncoder, RecurrentLayer
from saccade.models.rnn import Glimpse, RecurrentState, look_and_step


def add_residual(m: Tensor, x: Tensor, beneath: int) -> Tensor:
    """x^i = m^i + x^{i-1}, if the layer that made m of x has two or more `beneath` it; otherwise x^i = m^i."""
    return m + x if beneath >= 2 else m


class GNMTEncoder(nn.Module):
    """The lowest layer reads both ways, those above it from left to right   (Wu et al. 2016, 3.1 and 3.2).

    The memory is what the top layer gives, x^L_t.
    """

    def __init__(self, lowest: RecurrentEncoder, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.lowest = lowest
        self.layers = nn.ModuleList(RecurrentLayer("lstm", width if i else lowest.width, width) for i in range(layers))
        self.dropout = Dropout(dropout)
        self.width = width

    def forward(self, source: Tensor, mask: Tensor) -> Memory:
        x, _ = self.lowest.read(source, mask)
        for i, layer in enumerate(self.layers, start=1):
            assert isinstance(layer, RecurrentLayer)
            m, _ = layer(self.dropout(x), layer.start(x.size(0)))  # padding is at the right: no word comes after it
            x = add_residual(m, x, i)
        return Memory(x, mask)


class GNMTDecoder(nn.Module):
    """The lowest layer looks at the source, all layers are told what it saw   (Wu et al. 2016, 3, eq. 4, 3.3).

    a_t = attend(m^1_{t-1}, memory):  the query is the lowest layer's output of the step before
    layer 1 reads [y_{t-1}; a_t],  layer i reads [x^{i-1}_t; a_t];  the output matrix reads x^L_t

    Only the lowest layer waits for an attention; the others run over all steps in one fused call each, which is what
    the paper chose this wiring for. How the decoder starts the paper does not say: here from zeros, so that all it
    knows of the source comes through attention. `readout` only brings x^L_t to the width of the output embedding.
    """

    attends = True

    def __init__(
        self,
        embedding: nn.Embedding,
        output: nn.Linear,
        layers: Sequence[RecurrentLayer],
        look: Glimpse,
        readout: nn.Module,
        dropout: float,
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.output = output
        self.layers = nn.ModuleList(layers)
        self.look = look
        self.readout = readout
        self.dropout = Dropout(dropout)

    def init_state(self, memory: Memory, capacity: int | None = None) -> RecurrentState:
        starts = [layer.start(memory.states.size(0)) for layer in self.layers]  # type: ignore[operator]
        return RecurrentState(torch.stack(starts, dim=1), memory, self.look.prepare(memory))

    def forward(self, tokens: Tensor, state: RecurrentState, need_weights: bool = False) -> DecoderOutput:
        y = self.dropout(self.embedding(tokens))
        lowest, *higher = self.layers
        assert isinstance(lowest, RecurrentLayer)
        walk = look_and_step(lowest, self.look, y, state, need_weights)
        x, finals = walk.hidden[:, 1:], [walk.final]
        for i, layer in enumerate(higher, start=1):
            m, final = layer(torch.cat([self.dropout(x), walk.contexts], dim=-1), state.recurrent[:, i])
            x = add_residual(m, x, i)
            finals.append(final)
        attentions = None if walk.weights is None else (walk.weights,)
        after = state.after(torch.stack(finals, dim=1), tokens.size(1))
        return DecoderOutput(self.dropout(self.readout(x)), after, attentions)

    def project(self, hidden: Tensor) -> Tensor:
        return self.output(hidden)
