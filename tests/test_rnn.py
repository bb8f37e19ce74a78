"""Recurrent models against the papers' equations, written out step by step in float64."""

import pytest
import torch
from models_under_test import make, sentences, settings_of
from torch import nn

from saccade.data.batching import collate
from saccade.errors import SaccadeError
from saccade.models.build import build_model
from saccade.models.recurrence import RecurrentLayer, reverse


def gru(weights, x, s):
    """One step of a GRU for one sentence, gate by gate."""
    W, U, b, d = weights
    i, h = W @ x + b, U @ s + d
    E = s.numel()
    r, z = torch.sigmoid(i[:E] + h[:E]), torch.sigmoid(i[E : 2 * E] + h[E : 2 * E])
    n = torch.tanh(i[2 * E :] + r * h[2 * E :])
    return (1 - z) * n + z * s


def encode_gru(rnn: nn.GRU, embedded, suffix=""):
    weights = [getattr(rnn, f"{name}_l0{suffix}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    s, states = torch.zeros(rnn.hidden_size, dtype=torch.float64), []
    for x in embedded:
        s = gru(weights, x, s)
        states.append(s)
    return states


def maxout(layer, x):
    pairs = layer.linear.weight @ x + layer.linear.bias
    return torch.maximum(pairs[0::2], pairs[1::2])


@torch.no_grad()
def test_attention_decoder_is_bahdanaus_appendix():
    model = make("rnn bahdanau")
    source, target = sentences([5])[0], sentences([4], seed=2)[0]
    batch = collate([(source, target)], [0])
    output = model(batch.source, batch.source_mask, batch.inputs, need_weights=True)

    embedded = model.encoder.embedding.weight[batch.source[0]]
    forward = encode_gru(model.encoder.rnn, embedded)
    backward = encode_gru(model.encoder.rnn, embedded.flip(0), "_reverse")[::-1]
    h = [torch.cat(pair) for pair in zip(forward, backward, strict=True)]
    decoder = model.decoder
    score = decoder.look.score
    s = torch.tanh(decoder.bridge.linear.weight @ backward[0] + decoder.bridge.linear.bias)
    for t, token in enumerate(batch.inputs[0]):
        y = decoder.embedding.weight[token]
        e = torch.stack([score.v @ torch.tanh(score.W.weight @ s + score.U.weight @ h_j) for h_j in h])
        alpha = e.softmax(0)
        c = sum(a * h_j for a, h_j in zip(alpha, h, strict=True))
        hidden = maxout(decoder.readout, torch.cat([s, y, c]))
        torch.testing.assert_close(output.attentions[0][0, 0, t], alpha)
        torch.testing.assert_close(output.hidden[0, t], hidden)
        s = gru(decoder.stack.first.weights, torch.cat([y, c]), s)
    torch.testing.assert_close(output.state.recurrent[0, 0], s)


@torch.no_grad()
def test_decoder_without_attention_is_chos_appendix():
    model = make("rnn cho")
    batch = collate([(sentences([5])[0], sentences([4], seed=2)[0])], [0])
    output = model(batch.source, batch.source_mask, batch.inputs)
    last = encode_gru(model.encoder.encoder.rnn, model.encoder.encoder.embedding.weight[batch.source[0]])[-1]
    decoder = model.decoder
    c = torch.tanh(decoder.summary.weight @ last + decoder.summary.bias)
    s = torch.tanh(decoder.bridge.linear.weight @ c + decoder.bridge.linear.bias)
    for t, token in enumerate(batch.inputs[0]):
        y = decoder.embedding.weight[token]
        s = gru(decoder.stack.first.weights, torch.cat([y, c]), s)
        torch.testing.assert_close(output.hidden[0, t], maxout(decoder.readout, torch.cat([s, y, c])))
    assert output.attentions is None


@torch.no_grad()
def test_initial_state_decoder_is_sutskevers():
    """The last states of a deep LSTM over the reversed source are where the decoder's LSTM starts."""
    model = make("rnn sutskever")
    batch = collate([(sentences([5])[0], sentences([4], seed=2)[0])], [0])
    output = model(batch.source, batch.source_mask, batch.inputs)
    encoder, decoder = model.encoder.encoder, model.decoder
    _, (h, c) = encoder.rnn(encoder.embedding.weight[batch.source[0].flip(0)].unsqueeze(0))
    reference = nn.LSTM(12, 10, num_layers=2, batch_first=True, dtype=torch.float64)
    for i, layer in enumerate(decoder.stack.layers):
        for name, weight in zip(("weight_ih", "weight_hh", "bias_ih", "bias_hh"), layer.weights, strict=True):
            getattr(reference, f"{name}_l{i}").copy_(weight)
    states, _ = reference(decoder.embedding.weight[batch.inputs], (h, c))
    torch.testing.assert_close(output.hidden, decoder.readout(states))


@pytest.mark.parametrize("unit", ["gru", "lstm", "tanh"])
def test_a_step_by_hand_equals_the_fused_layer(unit):
    layer = RecurrentLayer(unit, 6, 5).double()
    x, state = torch.randn(3, 7, 6).double(), torch.randn(3, layer.state_width).double()
    outputs, final = layer(x, state)
    for t in range(7):
        state = layer.step(layer.project_input(x[:, t], slice(None)), state)
        torch.testing.assert_close(outputs[:, t], state[:, :5])
    torch.testing.assert_close(final, state)


def test_the_inputs_share_of_the_gates_can_be_computed_in_parts():
    layer = RecurrentLayer("gru", 6, 5).double()
    x = torch.randn(3, 6).double()
    parts = layer.project_input(x[:, :4], slice(0, 4)) + layer.project_input(x[:, 4:], slice(4, None))
    torch.testing.assert_close(parts, layer.project_input(x, slice(None)))


def test_reversal_turns_the_sentence_and_leaves_the_padding():
    x = torch.tensor([[5, 6, 7, 0], [8, 9, 0, 0]])
    assert reverse(x, x != 0).tolist() == [[7, 6, 5, 0], [9, 8, 0, 0]]


def test_recurrent_matrices_start_orthogonal_and_forget_gates_open():
    layer = RecurrentLayer("lstm", 6, 5)
    _, U, bias, _ = layer.weights
    for gate in U.chunk(4):
        torch.testing.assert_close(gate @ gate.T, torch.eye(5), rtol=0, atol=1e-5)
    assert bias.tolist() == [0.0] * 5 + [1.0] * 5 + [0.0] * 10


def test_wirings_that_no_paper_has_are_refused_with_the_remedy():
    with pytest.raises(SaccadeError, match=r"model\.bidirectional=true"):
        build_model(settings_of("rnn bahdanau", "model.bidirectional=false"), 20, 20)
    with pytest.raises(SaccadeError, match=r"model\.bidirectional=false"):
        build_model(settings_of("rnn sutskever", "model.bidirectional=true"), 20, 20)


def lstm(weights, x, state):
    """One step of an LSTM for one sentence, gate by gate; state is (hidden; cell)."""
    W, U, b, d = weights
    h, c = state.chunk(2)
    i, f, g, o = (W @ x + b + U @ h + d).chunk(4)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.cat([torch.sigmoid(o) * torch.tanh(c), c])


@pytest.mark.parametrize("name", ["rnn luong", "rnn luong, local-p, bidirectional", "rnn luong, no input feeding"])
@torch.no_grad()
def test_the_other_attention_decoder_is_luongs_section_3(name):
    model = make(name)
    encoder, decoder = model.encoder, model.decoder
    batch = collate([(sentences([7])[0], sentences([4], seed=2)[0])], [0])
    output = model(batch.source, batch.source_mask, batch.inputs, need_weights=True)
    memory = encoder(batch.source, batch.source_mask)
    states = list(decoder.hand_over(memory)[0])
    h_bar, fed = memory.states[0], torch.zeros(12, dtype=torch.float64)
    S = len(h_bar)
    for t, token in enumerate(batch.inputs[0]):
        y = decoder.embedding.weight[token]
        x = torch.cat([y, fed]) if decoder.input_feeding else y
        for i, layer in enumerate(decoder.stack.layers):
            states[i] = (gru if layer.unit == "gru" else lstm)(layer.weights, x, states[i])
            x = states[i][:10]
        h = x
        keys = decoder.look.score.prepare(h_bar)
        e = decoder.look.score(h[None], keys)[0]
        if "local-p" in name:
            window = decoder.look.window
            centre = S * torch.sigmoid(window.v_p.weight[0] @ torch.tanh(window.W_p.weight @ h))
            places = torch.arange(S)
            near = (places - centre).abs() <= 3
            alpha = torch.where(near, e, -float("inf")).softmax(0) * torch.exp(-((places - centre) ** 2) / (2 * 1.5**2))
            assert 0 < near.sum() < S
        else:
            alpha = e.softmax(0)
        fed = torch.tanh(decoder.readout.weight @ torch.cat([alpha @ h_bar, h]) + decoder.readout.bias)
        torch.testing.assert_close(output.attentions[0][0, 0, t], alpha)
        torch.testing.assert_close(output.hidden[0, t], fed)
