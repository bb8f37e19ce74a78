"""Recurrent language models that look back at what they read   (Daniluk et al. 2017).

| wiring | the recurrent output is | what comes next is told by |
|---|---|---|
| `attention` | h_t | h*_t = tanh(W^r r_t + W^x h_t), r_t mixed of h_{t-L} … h_{t-1}   (eq. 1 to 4) |
| `key-value` | h_t = [k_t; v_t] | h*_t = tanh(W^r r_t + W^x v_t), keys score, values are mixed   (eq. 6 to 10) |
| `key-value-predict` | h_t = [k_t; v_t; p_t] | h*_t = tanh(W^r r_t + W^x p_t)   (eq. 11 to 15) |
| `ngram` | h_t = [h_t^1; …; h_t^{N-1}] | h*_t = tanh(W^N [h_t^1; h_{t-1}^2; …; h_{t-N+2}^{N-1}])   (2.4) |

A language model translates by going on: the "encoder" reads the source with the very recurrent layers of the decoder,
which starts in the state where the source ended and looks back at the source's outputs and its own as at one text.
Where the source is empty, its end mark alone is read, and what is left is a language model of the targets.

The recurrence never waits for what was found by looking back, so all steps of a target run in one fused call. h* has
the width of the output's embeddings, not that of h, and the output has no bias: as in the other models here.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from saccade.attention.core import attend
from saccade.attention.dropout import Dropout
from saccade.attention.masks import before
from saccade.attention.scores import Additive
from saccade.attention.watching import PAST
from saccade.models.protocol import DecoderOutput, Memory
from saccade.models.recurrence import RecurrentStack


class LMEncoder(nn.Module):
    """Reads the source as a text that will go on: its outputs, and the state it ends in."""

    def __init__(self, embedding: nn.Embedding, stack: RecurrentStack, dropout: float) -> None:
        super().__init__()
        self.embedding = embedding
        self.stack = stack
        self.dropout = Dropout(dropout)

    def forward(self, source: Tensor, mask: Tensor) -> Memory:
        lengths = mask.sum(1).cpu()
        x = self.dropout(self.embedding(source))
        finals = []
        for i, layer in enumerate(self.stack.layers):
            # Packed, so that each row stops at its own last word: an LSTM's cells are told of that place alone.
            packed = pack_padded_sequence(
                self.stack.dropout(x) if i else x, lengths, batch_first=True, enforce_sorted=False
            )
            outputs, final = layer.rnn(packed)  # type: ignore[operator]
            x, _ = pad_packed_sequence(outputs, batch_first=True, total_length=source.size(1))
            finals.append((torch.cat(final, dim=-1) if isinstance(final, tuple) else final).squeeze(0))
        return Memory(x, mask, torch.stack(finals, dim=1))


class Past(Protocol):
    """What a way of looking back keeps of the outputs so far."""

    def select(self, indices: Tensor) -> "Past": ...


class Told(NamedTuple):
    """What is said of the next word, what is kept, and where of the source was looked at."""

    hidden: Tensor  # (B, T, E)
    past: Past
    weights: Tensor | None  # (B, 1, T, S)


@dataclass(frozen=True)
class Tape:
    """Keys and values of all outputs so far: the source's, right-padded as they came, then the target's."""

    keys: Tensor  # (B, K, ·), as the score prepared them; storage that is filled from the left
    values: Tensor  # (B, K, ·)
    real: Tensor  # (B, S), which of the source are real
    written: int  # target positions

    @property
    def filled(self) -> int:
        return self.real.size(1) + self.written

    def select(self, indices: Tensor) -> "Tape":
        keys, values = (self._select_filled(storage, indices) for storage in (self.keys, self.values))
        return Tape(keys, values, self.real.index_select(0, indices), self.written)

    def extended(self, keys: Tensor, values: Tensor) -> "Tape":
        """With the outputs (B, T, ·) of the next positions: in the storage where there is room, else joined to it."""
        return Tape(
            self._append(self.keys, keys), self._append(self.values, values), self.real, self.written + keys.size(1)
        )

    def places(self) -> Tensor:
        """(B, filled): which word of its row each position holds, padding not counted."""
        S, lengths = self.real.size(1), self.real.sum(1, keepdim=True)
        count = torch.arange(max(S, self.written), device=self.real.device)
        return torch.cat([count[:S].expand_as(self.real), lengths + count[: self.written]], dim=1)

    def _append(self, storage: Tensor, new: Tensor) -> Tensor:
        start, end = self.filled, self.filled + new.size(1)
        if storage.size(1) < end:
            return torch.cat([storage[:, :start], new], dim=1)
        storage[:, start:end] = new
        return storage

    def _select_filled(self, storage: Tensor, indices: Tensor) -> Tensor:
        chosen = storage.new_empty(indices.numel(), *storage.shape[1:])
        chosen[:, : self.filled] = storage[:, : self.filled].index_select(0, indices)
        return chosen


class Attentive(nn.Module):
    """Attention over the last L outputs   (Daniluk et al. 2017, eq. 1 to 15).

    M_t = tanh(W^Y [k_{t-L} … k_{t-1}] + (W^h k_t) 1ᵀ),  α_t = softmax(wᵀ M_t),  r_t = [v_{t-L} … v_{t-1}] α_tᵀ
    h*_t = tanh(W^r r_t + W^x p_t)

    h_t is cut into `parts`. 1: k = v = p = h;  2: [k; v], p = v;  3: [k; v; p]. L counts words, the source's and the
    target's alike; None: all that came before.
    """

    attends = True
    looks, heads = PAST, 1

    def __init__(self, width: int, parts: int, window: int | None, output_width: int) -> None:
        super().__init__()
        self.parts = parts
        self.window = window
        part = width // parts
        self.score = Additive(part, part, part)
        self.W_r = nn.Linear(part, output_width, bias=False)
        self.W_x = nn.Linear(part, output_width, bias=False)
        for matrix in (self.W_r, self.W_x):
            nn.init.xavier_uniform_(matrix.weight)

    def begin(self, memory: Memory, capacity: int | None) -> Tape:
        key, value, _ = self.cut(memory.states)
        room = (0, 0, 0, capacity or 0)
        return Tape(F.pad(self.score.prepare(key), room), F.pad(value, room), memory.mask, 0)

    def cut(self, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Key, value, predict."""
        parts = h.chunk(self.parts, dim=-1)
        return parts[0], parts[min(1, self.parts - 1)], parts[-1]

    def forward(self, h: Tensor, past: Tape, need_weights: bool) -> Told:
        key, value, predict = self.cut(h)
        tape = past.extended(self.score.prepare(key), value)
        S, T, K = tape.real.size(1), h.size(1), tape.filled
        places = tape.places()
        real = F.pad(tape.real, (0, tape.written), value=True)
        found = attend(
            key.unsqueeze(1),
            tape.keys[:, :K].unsqueeze(1),
            tape.values[:, :K].unsqueeze(1),
            score=self.score,
            mask=before(places[:, -T:], places, self.window) & real[:, None, None],
            need_weights=need_weights,
        )
        hidden = torch.tanh(self.W_r(found.context.squeeze(1)) + self.W_x(predict))
        return Told(hidden, tape, None if found.weights is None else found.weights[..., :S])


@dataclass(frozen=True)
class LastOutputs:
    """The N - 2 outputs before the next, zeros where there were not so many."""

    outputs: Tensor  # (B, N - 2, ·)

    def select(self, indices: Tensor) -> "LastOutputs":
        return LastOutputs(self.outputs.index_select(0, indices))


class Ngram(nn.Module):
    """Parts of the last N - 1 outputs, side by side   (Daniluk et al. 2017, 2.4, "N-gram RNN").

    h*_t = tanh(W^N [h_t^1; h_{t-1}^2; …; h_{t-N+2}^{N-1}])
    """

    attends = False

    def __init__(self, width: int, order: int, output_width: int) -> None:
        super().__init__()
        self.order = order
        self.part = width // (order - 1)
        self.W_N = nn.Linear(width, output_width, bias=False)
        nn.init.xavier_uniform_(self.W_N.weight)

    def begin(self, memory: Memory, capacity: int | None) -> LastOutputs:
        places = memory.mask.sum(1, keepdim=True) + torch.arange(2 - self.order, 0, device=memory.mask.device)
        index = places.clamp(min=0).unsqueeze(-1).expand(-1, -1, memory.states.size(-1))
        return LastOutputs(memory.states.gather(1, index).masked_fill(places.unsqueeze(-1) < 0, 0.0))

    def forward(self, h: Tensor, past: LastOutputs, need_weights: bool) -> Told:
        outputs = torch.cat([past.outputs, h], dim=1)
        earlier, T = self.order - 2, h.size(1)
        gram = [
            outputs[:, earlier - i : earlier - i + T, i * self.part : (i + 1) * self.part]
            for i in range(self.order - 1)
        ]
        return Told(torch.tanh(self.W_N(torch.cat(gram, dim=-1))), LastOutputs(outputs[:, T:]), None)


@dataclass(frozen=True)
class LMState:
    """The recurrent state, and what is kept of the outputs so far."""

    recurrent: Tensor  # (B, layers, ·)
    past: Past

    def select(self, indices: Tensor) -> "LMState":
        return LMState(self.recurrent.index_select(0, indices), self.past.select(indices))


class LMDecoder(nn.Module):
    """Goes on where the source ended."""

    def __init__(
        self,
        embedding: nn.Embedding,
        output: nn.Linear,
        stack: RecurrentStack,
        look_back: Attentive | Ngram,
        dropout: float,
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.output = output
        self.stack = stack
        self.look_back = look_back
        self.dropout = Dropout(dropout)

    @property
    def attends(self) -> bool:
        return self.look_back.attends

    def init_state(self, memory: Memory, capacity: int | None = None) -> LMState:
        assert memory.final is not None, "a language model goes on from a recurrent state"
        return LMState(memory.final, self.look_back.begin(memory, capacity))

    def forward(self, tokens: Tensor, state: LMState, need_weights: bool = False) -> DecoderOutput:
        h, recurrent = self.stack(self.dropout(self.embedding(tokens)), state.recurrent)
        told = self.look_back(h, state.past, need_weights)
        attentions = None if told.weights is None else (told.weights,)
        return DecoderOutput(self.dropout(told.hidden), LMState(recurrent, told.past), attentions)

    def project(self, hidden: Tensor) -> Tensor:
        return self.output(hidden)
