"""The LSTMN in plain PyTorch, with deep and with shallow fusion."""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.direct_common import Additive, Direct, Twins, maxout
from saccade.data.tokenizers import PAD


class Tape(NamedTuple):
    """What a layer has written so far."""

    keys: Tensor  # (B, t, H): U h_i
    entries: Tensor  # (B, t, 2H): [h_i; c_i]

    def hidden(self, steps: int) -> Tensor:
        """The last h's, (B, steps, H)."""
        return self.entries[:, -steps:].chunk(2, dim=-1)[0]


class LSTMNLayer(nn.Module):
    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.widths = [inputs, width]
        self.score = Additive(inputs + width, width, width)
        self.W, self.U = nn.Linear(inputs, 4 * width, bias=False), nn.Linear(width, 4 * width)

    def asking(self) -> list[Tensor]:
        """What of the question is asked by the input, and what by the last reading."""
        return list(self.score.W.weight.split(self.widths, dim=1))

    def blank(self, x: Tensor) -> Tape:
        B, H = x.size(0), self.widths[1]
        return Tape(x.new_empty(B, 0, H), x.new_empty(B, 0, 2 * H))

    def write(self, tape: Tape, entry: Tensor) -> Tape:
        key = self.score.U(entry.chunk(2, dim=-1)[0])
        return Tape(*(torch.cat([old, new.unsqueeze(1)], dim=1) for old, new in zip(tape, (key, entry), strict=True)))

    def step(
        self, question: Tensor, gates: Tensor, tape: Tape, transferred: Tensor | None = None
    ) -> tuple[Tape, Tensor]:
        """`gates` as the input alone has them; what was read comes back, for the next question."""
        weights = (torch.tanh(question.unsqueeze(1) + tape.keys) @ self.score.v).softmax(-1)
        h_read, c_read = torch.bmm(weights.unsqueeze(1), tape.entries).squeeze(1).chunk(2, dim=-1)
        i, f, o, c_new = (gates + self.U(h_read)).chunk(4, dim=-1)
        c = torch.sigmoid(f) * c_read + torch.sigmoid(i) * torch.tanh(c_new)
        if transferred is not None:
            c = c + transferred
        return self.write(tape, torch.cat([torch.sigmoid(o) * torch.tanh(c), c], dim=-1)), h_read

    def forward(self, x: Tensor, tape: Tape) -> Tape:
        """All steps of x (B, T, ·)."""
        from_input, from_read = self.asking()
        last = x.new_zeros(x.size(0), self.widths[1])
        for question, gates in zip(F.linear(x, from_input).unbind(1), self.W(x).unbind(1), strict=True):
            tape, last = self.step(question + F.linear(last, from_read), gates, tape)
        return tape


class LSTMN(Direct):
    """Deep fusion: what is found of the source goes into the memory, through a gate."""

    def __init__(self, shape: Any, vocabulary: int) -> None:
        E, H = shape.embedding, shape.width
        super().__init__(vocabulary, E, shape.dropout)
        first = self.make_fusion(E, H)
        self.reading = nn.ModuleList(LSTMNLayer(H if i else E, H) for i in range(shape.layers))
        self.writing = nn.ModuleList(LSTMNLayer(H if i else first, H) for i in range(shape.layers))
        self.readout = nn.Linear(H + E + H, 2 * E)

    def make_fusion(self, E: int, H: int) -> int:
        """The parts that look at the source; returns how wide the first layer's input then is."""
        self.score = Additive(E + H, H, H)
        self.gate_from_word, self.gate_from_source = nn.Linear(E, H), nn.Linear(H, H, bias=False)
        return E

    def fuse(self, y: Tensor, tape: Tape, memory: Tensor, padding: Tensor) -> tuple[Tape, Tensor]:
        """The first layer's steps over y (B, T, E): its tape, and what each found, (B, T, H)."""
        layer, H = self.writing[0], tape.keys.size(2)
        keys = self.score.U(memory.chunk(2, dim=-1)[0])
        from_input, from_read = layer.asking()
        look_from_word, look_from_found = self.score.W.weight.split([y.size(2), H], dim=1)
        at_once = (F.linear(y, look_from_word), self.gate_from_word(y), F.linear(y, from_input), layer.W(y))
        last = found = y.new_zeros(y.size(0), H)
        all_found = []
        for look, gate, question, gates in zip(*(part.unbind(1) for part in at_once), strict=True):
            e = torch.tanh((look + F.linear(found, look_from_found)).unsqueeze(1) + keys) @ self.score.v
            p = e.masked_fill(padding, float("-inf")).softmax(-1)
            found, cell = torch.bmm(p.unsqueeze(1), memory).squeeze(1).chunk(2, dim=-1)
            transferred = torch.sigmoid(gate + self.gate_from_source(found)) * cell
            tape, last = layer.step(question + F.linear(last, from_read), gates, tape, transferred)
            all_found.append(found)
        return tape, torch.stack(all_found, dim=1)

    def forward(self, source: Tensor, inputs: Tensor) -> Tensor:
        ends, T = (source != PAD).sum(1) - 1, inputs.size(1)
        x, tapes = self.embedding(source), []
        for layer in self.reading:
            x = self.dropout(x)
            tapes.append(layer(x, layer.blank(x)))
            x = tapes[-1].hidden(source.size(1))
        y = self.embed(inputs)
        starts = [
            layer.write(layer.blank(y), tape.entries[torch.arange(y.size(0)), ends])
            for layer, tape in zip(self.writing, tapes, strict=True)
        ]
        tape, found = self.fuse(y, starts[0], tapes[-1].entries, source == PAD)
        for layer, start in zip(self.writing[1:], starts[1:], strict=True):
            tape = layer(self.dropout(tape.hidden(T)), start)
        return self.dropout(maxout(self.readout(torch.cat([tape.hidden(T), y, found], dim=-1))))

    def twins(self, model: Any) -> Twins:
        yield self.reading, model.encoder.layers
        yield self.writing, model.decoder.layers
        yield self.readout, model.decoder.readout.linear
        yield from self.fusion_twins(model.decoder.fusion)

    def fusion_twins(self, fusion: Any) -> Twins:
        yield self.score, fusion.look.score
        yield self.gate_from_word, fusion.gate_from_word
        yield self.gate_from_source, fusion.gate_from_source


class ShallowLSTMN(LSTMN):
    """Shallow fusion: what is found of the source goes into the input."""

    def make_fusion(self, E: int, H: int) -> int:
        self.score = Additive(H, H, H)
        return E + H

    def fuse(self, y: Tensor, tape: Tape, memory: Tensor, padding: Tensor) -> tuple[Tape, Tensor]:
        layer, h = self.writing[0], memory.chunk(2, dim=-1)[0]
        keys = self.score.U(h)
        last = y.new_zeros(y.size(0), h.size(2))
        all_found = []
        for y_t in y.unbind(1):
            e = self.score(tape.hidden(1).squeeze(1), keys).masked_fill(padding, float("-inf"))
            found = torch.bmm(e.softmax(-1).unsqueeze(1), h).squeeze(1)
            x = torch.cat([y_t, found], dim=-1)
            tape, last = layer.step(layer.score.W(torch.cat([x, last], dim=-1)), layer.W(x), tape)
            all_found.append(found)
        return tape, torch.stack(all_found, dim=1)

    def fusion_twins(self, fusion: Any) -> Twins:
        yield self.score, fusion.look.score
