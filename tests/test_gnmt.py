"""GNMT against the equations of Wu et al. 2016, written out step by step in float64."""

import pytest
import torch
from models_under_test import make, sentences, settings_of
from test_rnn import lstm

from saccade.attention.scores import SCORES
from saccade.config import Config
from saccade.data.batching import collate
from saccade.errors import SaccadeError
from saccade.models.build import build_model, measures, with_shape
from saccade.models.build.shapes import GNMT_LAYERS

WIDTH = 10


def run(weights, inputs):
    """m_1 … m_n of an LSTM layer over one sentence, from zeros."""
    state, outputs = torch.zeros(2 * WIDTH, dtype=torch.float64), []
    for x in inputs:
        state = lstm(weights, x, state)
        outputs.append(state[:WIDTH])
    return outputs


def encode(encoder, tokens):
    """x^L of the encoder, word by word."""
    words = list(encoder.lowest.embedding.weight[tokens])
    forward, backward = encoder.lowest.rnn.all_weights
    both = zip(run(forward, words), run(backward, words[::-1])[::-1], strict=True)
    x = [torch.cat(pair) for pair in both]
    for number, layer in enumerate(encoder.layers, start=2):
        m = run(layer.weights, x)
        x = m if number == 2 else [m_t + x_t for m_t, x_t in zip(m, x, strict=True)]
    return x


@torch.no_grad()
def test_encoder_and_decoder_are_wus_section_3():
    model = make("rnn gnmt")
    decoder, score = model.decoder, model.decoder.look.score
    batch = collate([(sentences([6])[0], sentences([5], seed=2)[0])], [0])
    output = model(batch.source, batch.source_mask, batch.inputs, need_weights=True)
    h = encode(model.encoder, batch.source[0])
    torch.testing.assert_close(model.encode(batch.source, batch.source_mask).states[0], torch.stack(h))

    assert len(decoder.layers) == 4
    states = [torch.zeros(2 * WIDTH, dtype=torch.float64) for _ in range(4)]
    for t, token in enumerate(batch.inputs[0]):
        before = states[0][:WIDTH]  # the lowest layer's output of the step before
        e = torch.stack([score.v @ torch.tanh(score.W.weight @ before + score.U.weight @ h_j) for h_j in h])
        p = e.softmax(0)
        a = sum(p_j * h_j for p_j, h_j in zip(p, h, strict=True))
        x = decoder.embedding.weight[token]
        for i, layer in enumerate(decoder.layers):
            states[i] = lstm(layer.weights, torch.cat([x, a]), states[i])
            m = states[i][:WIDTH]
            x = m if i < 2 else m + x  # from the third layer on
        torch.testing.assert_close(output.attentions[0][0, 0, t], p)
        torch.testing.assert_close(output.hidden[0, t], decoder.readout.weight @ x + decoder.readout.bias)
    torch.testing.assert_close(output.state.recurrent[0], torch.stack(states))


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("window", ["global", "local-p"])
def test_any_score_and_window_fits_and_learns_from_its_first_step(score, window):
    torch.manual_seed(0)
    model = build_model(settings_of("rnn gnmt", f"model.score={score}", f"model.window={window}"), 20, 20).double()
    model.eval()
    batch = collate(list(zip(sentences([5, 8]), sentences([6, 3], seed=2), strict=True)), [0, 1])
    at_once = model(batch.source, batch.source_mask, batch.inputs, need_weights=True)
    state, steps = model.init_state(model.encode(batch.source, batch.source_mask)), []
    for token in batch.inputs.split(1, dim=1):
        output = model.decode(token, state)
        state = output.state
        steps.append(output.hidden)
    torch.testing.assert_close(torch.cat(steps, dim=1), at_once.hidden)
    assert not at_once.attentions[0].masked_select(~batch.source_mask[:, None, None]).any()
    at_once.hidden.square().sum().backward()  # the first query is all zeros, which must not break a score
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize(
    ("setting", "remedy"),
    [
        ("model.cell=gru", r"model\.cell=gru.*set model\.cell=lstm"),
        ("model.layers=1", r"model\.layers=1.*set model\.layers=2"),
        ("model.bidirectional=false", r"set model\.bidirectional=true"),
        ("model.reverse_source=true", r"set model\.reverse_source=false"),
    ],
)
def test_what_the_paper_does_not_have_is_refused_with_the_remedy(setting, remedy):
    with pytest.raises(SaccadeError, match=remedy):
        build_model(settings_of("rnn gnmt", setting), 20, 20)


@pytest.mark.parametrize("size", GNMT_LAYERS)
def test_what_is_left_open_is_chosen_as_the_paper_has_it(size):
    model = with_shape(Config.load(None, ["model.family=rnn", "model.wiring=gnmt", f"model.size={size}"]).model, True)
    assert (model.cell, model.bidirectional, model.layers) == ("lstm", True, GNMT_LAYERS[size])
    assert measures(model).endswith("additive attention")


def test_the_other_wirings_are_chosen_one_layer_of_gru():
    for wiring in ("cho", "sutskever", "bahdanau", "luong"):
        model = with_shape(Config.load(None, ["model.family=rnn", f"model.wiring={wiring}"]).model, True)
        assert (model.cell, model.layers) == ("gru", 1)
