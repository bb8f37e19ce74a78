"""LSTMN against the paper's equations, written out word by word in float64."""

import pytest
import torch
from models_under_test import MODELS, make, sentences, settings_of

from saccade.data.batching import collate
from saccade.devices import autocast
from saccade.errors import SaccadeError
from saccade.models.build import build_model, measures
from saccade.models.lstmn import LSTMNLayer, Tape

both_fusions = pytest.mark.parametrize("fusion", ["shallow", "deep"])
WORD, WIDTH = 12, 10


def additive(score, parts, key):
    """vᵀ tanh(W_h h_i + W_1 part_1 + W_2 part_2 …), a matrix of its own for each part of the query."""
    matrices = score.W.weight.split([part.numel() for part in parts], dim=1)
    return score.v @ torch.tanh(score.U.weight @ key + sum(W @ part for W, part in zip(matrices, parts, strict=True)))


def mixture(weights, vectors):
    return sum((w * v for w, v in zip(weights, vectors, strict=True)), torch.zeros(WIDTH).double())


class Unit:
    """One LSTMN of one sentence: two lists, and the last h̃."""

    def __init__(self, layer, h=(), c=()):
        self.layer, self.h, self.c = layer, list(h), list(c)
        self.h_tilde = torch.zeros(WIDTH).double()

    def step(self, x, transferred=0.0):
        score = self.layer.score
        a = [additive(score, [x, self.h_tilde], h_i) for h_i in self.h]
        s = torch.stack(a).softmax(0) if a else []
        self.h_tilde, c_tilde = mixture(s, self.h), mixture(s, self.c)
        W = torch.cat([self.layer.U.weight, self.layer.W.weight], dim=1)
        i, f, o, c_hat = (W @ torch.cat([self.h_tilde, x]) + self.layer.U.bias).split(WIDTH)
        c = transferred + torch.sigmoid(f) * c_tilde + torch.sigmoid(i) * torch.tanh(c_hat)
        self.h.append(torch.sigmoid(o) * torch.tanh(c))
        self.c.append(c)
        return self.h[-1]


def maxout(layer, x):
    pairs = layer.linear.weight @ x + layer.linear.bias
    return torch.maximum(pairs[0::2], pairs[1::2])


def by_hand(model, source, inputs, fusion):
    """What the decoder says after each word of one sentence, and where it looked."""
    encoder, decoder = model.encoder, model.decoder
    units = [Unit(layer) for layer in encoder.layers]
    for token in source:
        x = encoder.embedding.weight[token]
        for unit in units:
            x = unit.step(x)
    gamma, alpha = units[-1].h, units[-1].c
    look, gamma_tilde = decoder.fusion.look.score, torch.zeros(WIDTH).double()
    units = [Unit(layer, [unit.h[-1]], [unit.c[-1]]) for layer, unit in zip(decoder.layers, units, strict=True)]
    hidden, looks = [], []
    for token in inputs:
        y = decoder.embedding.weight[token]
        query = [units[0].h[-1]] if fusion == "shallow" else [y, gamma_tilde]
        p = torch.stack([additive(look, query, gamma_j) for gamma_j in gamma]).softmax(0)
        gamma_tilde = mixture(p, gamma)
        if fusion == "shallow":
            x = units[0].step(torch.cat([y, gamma_tilde]))
        else:
            gate = decoder.fusion.gate_from_source.weight @ gamma_tilde + decoder.fusion.gate_from_word.weight @ y
            r = torch.sigmoid(gate + decoder.fusion.gate_from_word.bias)
            x = units[0].step(y, transferred=r * mixture(p, alpha))
        for unit in units[1:]:
            x = unit.step(x)
        hidden.append(maxout(decoder.readout, torch.cat([x, y, gamma_tilde])))
        looks.append(p)
    return torch.stack(hidden), torch.stack(looks)


@both_fusions
@pytest.mark.parametrize("layers", [1, 2])
@torch.no_grad()
def test_lstmn_is_the_papers_sections_3_2_and_4(fusion, layers, monkeypatch):
    name = f"rnn lstmn, {fusion}"
    monkeypatch.setitem(MODELS, name, [*MODELS[name], f"model.layers={layers}"])
    model = make(name)
    sources, targets = sentences([5, 8]), sentences([6, 3], seed=2)
    batch = collate(list(zip(sources, targets, strict=True)), [0, 1])
    output = model(batch.source, batch.source_mask, batch.inputs, need_weights=True)
    (attention,) = output.attentions
    assert attention.shape == (2, 1, batch.inputs.size(1), batch.source.size(1))
    for row in range(2):
        S, T = int(batch.source_mask[row].sum()), len(targets[row]) + 1
        hidden, looks = by_hand(model, batch.source[row, :S], batch.inputs[row, :T], fusion)
        torch.testing.assert_close(output.hidden[row, :T], hidden, rtol=0, atol=1e-10)
        torch.testing.assert_close(attention[row, 0, :T, :S], looks, rtol=0, atol=1e-10)
        assert not attention[row, 0, :, S:].any()


@both_fusions
@torch.no_grad()
def test_two_layers_step_by_step_equal_teacher_forcing(fusion, monkeypatch):
    name = f"rnn lstmn, {fusion}"
    monkeypatch.setitem(MODELS, name, [*MODELS[name], "model.layers=2"])
    model = make(name)
    batch = collate(list(zip(sentences([4, 7]), sentences([5, 5], seed=2), strict=True)), [0, 1])
    at_once = model(batch.source, batch.source_mask, batch.inputs).hidden
    state = model.init_state(model.encode(batch.source, batch.source_mask), capacity=batch.inputs.size(1))
    for t, token in enumerate(batch.inputs.split(1, dim=1)):
        output = model.decode(token, state)
        state = output.state.select(torch.tensor([1, 0])).select(torch.tensor([1, 0]))
        torch.testing.assert_close(output.hidden[:, 0], at_once[:, t], rtol=0, atol=1e-10)


@both_fusions
@torch.no_grad()
def test_generation_writes_into_storage_that_was_made_once(fusion):
    model = make(f"rnn lstmn, {fusion}")
    batch = collate([(sentences([5])[0], sentences([6], seed=2)[0])], [0])
    state = model.init_state(model.encode(batch.source, batch.source_mask), capacity=7)
    made = state.tapes[0]
    for token in batch.inputs.split(1, dim=1):
        state = model.decode(token, state).state
    tape = state.tapes[0]
    assert (tape.keys.data_ptr(), tape.entries.data_ptr()) == (made.keys.data_ptr(), made.entries.data_ptr())
    assert (made.filled, tape.filled, tape.keys.size(2)) == (1, 8, 8)  # where the encoder ended, and seven words
    torch.testing.assert_close(tape.keys[0, 0], model.decoder.layers[0].score.prepare(tape.hidden(8)[0]))


def test_a_tape_without_room_grows_and_keeps_what_it_held():
    layer = LSTMNLayer(3, 2)
    tape = layer.blank(1, room=1)
    entries = torch.randn(1, 3, 4)
    for t in range(3):
        tape = layer.write(tape, entries[:, t])
    assert tape.filled == 3
    torch.testing.assert_close(tape.written()[1][:, 0], entries)
    torch.testing.assert_close(tape.hidden(2), entries[:, 1:, :2])


def test_chosen_rows_of_a_tape_share_nothing_with_it():
    tape = Tape(torch.zeros(2, 1, 3, 2), torch.zeros(2, 1, 3, 4)).append(torch.ones(2, 2), torch.ones(2, 4))
    chosen = tape.select(torch.tensor([1, 1, 0]))
    chosen.append(torch.full((3, 2), 5.0), torch.full((3, 4), 5.0))
    assert chosen.keys.shape == (3, 1, 3, 2)
    assert tape.entries[:, :, 1].eq(0).all()
    assert chosen.entries[:, :, 0].eq(1).all()


def test_the_first_step_of_an_empty_tape_is_an_lstms_first_step():
    layer = LSTMNLayer(3, 2).double()
    lstm = torch.nn.LSTMCell(3, 2).double()
    i, f, o, g = range(4)
    with torch.no_grad():  # torch orders the gates i, f, g, o
        for mine, theirs in ((layer.W.weight, lstm.weight_ih), (layer.U.weight, lstm.weight_hh)):
            theirs.copy_(torch.cat([mine.chunk(4)[gate] for gate in (i, f, g, o)]))
        lstm.bias_ih.copy_(torch.cat([layer.U.bias.chunk(4)[gate] for gate in (i, f, g, o)]))
        lstm.bias_hh.zero_()
    x = torch.randn(4, 3).double()
    tape, h_tilde = layer.step(x, layer.project_input(x), layer.blank(4), torch.zeros(4, 2).double())
    torch.testing.assert_close(tape.entries[:, 0, 0], torch.cat(lstm(x), dim=-1))
    assert not h_tilde.any()


@both_fusions
def test_gradients_reach_every_weight(fusion):
    model = make(f"rnn lstmn, {fusion}")
    batch = collate(list(zip(sentences([5, 3]), sentences([4, 6], seed=2), strict=True)), [0, 1])
    model.logits(model(batch.source, batch.source_mask, batch.inputs).hidden).logsumexp(-1).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


@both_fusions
def test_tapes_are_never_rounded_to_half_precision(fusion):
    model = make(f"rnn lstmn, {fusion}").float()
    batch = collate([(sentences([5])[0], sentences([6], seed=2)[0])], [0])
    with autocast(torch.device("cpu"), "bf16"):
        memory = model.encode(batch.source, batch.source_mask)
        output = model.decode(batch.inputs, model.init_state(memory))
    exact = model(batch.source, batch.source_mask, batch.inputs)
    assert memory.states.dtype == output.state.tapes[0].entries.dtype == torch.float32
    torch.testing.assert_close(output.state.tapes[0].entries, exact.state.tapes[0].entries)


def test_readings_that_the_paper_has_not_are_refused_with_the_remedy():
    for setting in ("bidirectional", "reverse_source"):
        with pytest.raises(SaccadeError, match=rf"set model\.{setting}=false"):
            build_model(settings_of("rnn lstmn, deep", f"model.{setting}=true"), 20, 20)


def test_its_measures_name_the_fusion_and_not_a_cell_it_does_not_have():
    words = measures(settings_of("rnn lstmn, deep").model)
    assert words == "lstmn, deep fusion, 10 wide, embeddings 12, additive attention"
