"""Score functions and windows, each against its equation over single vectors in float64."""

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models_under_test import make, sentences, settings_of
from torch import Tensor, nn

from saccade.attention import SCORES, attend
from saccade.attention.scores import ContentScore, Location
from saccade.attention.windows import WINDOWS, LocalPredictive
from saccade.data.batching import collate
from saccade.errors import SaccadeError
from saccade.models.build import build_model

WIDTH = 6


def made(name: str, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    score = SCORES[name](query_width=WIDTH, key_width=WIDTH, width=8).double()
    for parameter in score.parameters():
        nn.init.normal_(parameter, std=0.5)
    return score


def cosine(a: Tensor, b: Tensor) -> Tensor:
    return a @ b / (a.norm() * b.norm())


EQUATIONS = {
    "dot": lambda m, s, h, i, j: s @ h,
    "scaled-dot": lambda m, s, h, i, j: s @ h / WIDTH**0.5,
    "bilinear": lambda m, s, h, i, j: s @ m.W.weight @ h,
    "low-rank": lambda m, s, h, i, j: (m.U.weight @ s) @ (m.V.weight @ h),
    "additive": lambda m, s, h, i, j: m.v @ torch.tanh(m.W.weight @ s + m.U.weight @ h),
    "concat": lambda m, s, h, i, j: m.v @ torch.tanh(torch.cat([m.W.weight, m.U.weight], dim=1) @ torch.cat([s, h])),
    "location": lambda m, s, h, i, j: m.W.weight[j] @ s,
    "cosine": lambda m, s, h, i, j: cosine(s, m.W.weight @ h) / m.log_temperature.exp(),
    "diagonal": lambda m, s, h, i, j: torch.tensor(-((i - j) ** 2) / 2.0, dtype=torch.float64),
}


@pytest.mark.parametrize("name", SCORES)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 99), position=st.integers(0, 5))
def test_every_score_is_its_equation(name, seed, position):
    score = made(name, seed)
    queries, keys = torch.randn(2, 1, 3, WIDTH).double(), torch.randn(2, 1, 5, WIDTH).double()
    found = score.at(position)(queries, score.prepare(keys))
    for b in range(2):
        for q in range(3):
            for j in range(5):
                expected = EQUATIONS[name](score, queries[b, 0, q], keys[b, 0, j], position + q, j)
                assert found[b, 0, q, j].item() == pytest.approx(expected.item(), abs=1e-9)


@pytest.mark.parametrize("name", [name for name in SCORES if name != "diagonal"])
def test_every_score_passes_a_gradient_to_what_it_reads(name):
    score = made(name)
    queries = torch.randn(1, 1, 2, WIDTH).double().requires_grad_()
    keys = torch.randn(1, 1, 4, WIDTH).double().requires_grad_()
    values = torch.randn(1, 1, 4, WIDTH).double()
    attend(queries, score.prepare(keys), values, score=score).context.pow(2).sum().backward()
    assert queries.grad.abs().sum() > 0
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in score.parameters())


def test_words_beyond_the_last_place_are_ignored_by_location():
    score, K = made("location"), Location.PLACES + 3
    queries, keys = torch.randn(1, 1, 2, WIDTH).double(), torch.randn(1, 1, K, WIDTH).double()
    found = attend(queries, keys, keys, score=score, need_weights=True)
    assert not found.weights[..., Location.PLACES :].any()
    torch.testing.assert_close(found.weights.sum(-1), torch.ones(1, 1, 2).double())


def test_dot_needs_states_of_one_width():
    with pytest.raises(SaccadeError, match=r"model\.score=dot needs states of one width.*bilinear"):
        build_model(settings_of("rnn luong, local-p, bidirectional", "model.score=dot"), 20, 20)


@pytest.mark.parametrize(
    ("setting", "message"),
    [("model.score=aditive", "did you mean additive"), ("model.window=local-q", "did you mean local-")],
)
def test_unknown_parts_are_refused_with_the_nearest(setting, message):
    with pytest.raises(SaccadeError, match=message):
        build_model(settings_of("rnn luong", setting), 20, 20)


@pytest.mark.parametrize("name", [name for name in SCORES if "dot" not in name])
@pytest.mark.parametrize(
    "wiring", ["rnn bahdanau", "rnn luong, local-p, bidirectional", "rnn lstmn, shallow", "rnn lstmn, deep"]
)
def test_any_score_fits_any_wiring_stepwise_and_at_once(name, wiring):
    torch.manual_seed(0)
    model = build_model(settings_of(wiring, f"model.score={name}"), 20, 20).double().eval()
    batch = collate(list(zip(sentences([5, 8]), sentences([6, 3], seed=2), strict=True)), [0, 1])
    at_once = model(batch.source, batch.source_mask, batch.inputs, need_weights=True)
    state, steps = model.init_state(model.encode(batch.source, batch.source_mask)), []
    for token in batch.inputs.split(1, dim=1):
        output = model.decode(token, state)
        state = output.state
        steps.append(output.hidden)
    torch.testing.assert_close(torch.cat(steps, dim=1), at_once.hidden)
    assert not at_once.attentions[0].masked_select(~batch.source_mask[:, None, None]).any()


def test_a_tenth_score_takes_a_few_lines_and_no_edit_elsewhere(monkeypatch):
    class Manhattan(ContentScore):
        """e = -Σ |s - W h|."""

        def __init__(self, query_width, key_width, width):
            super().__init__(query_width, key_width, width)
            self.W = nn.Linear(key_width, query_width, bias=False)

        def prepare(self, keys):
            return self.W(keys)

        def forward(self, queries, keys):
            return -torch.cdist(queries, keys, p=1)

    monkeypatch.setitem(SCORES, "manhattan", Manhattan)
    model = build_model(settings_of("rnn bahdanau", "model.score=manhattan"), 20, 20)
    batch = collate([(sentences([5])[0], sentences([4])[0])], [0])
    output = model(batch.source, batch.source_mask, batch.inputs, need_weights=True)
    torch.testing.assert_close(output.attentions[0].sum(-1), torch.ones(1, 1, 5))


@settings(max_examples=30, deadline=None)
@given(radius=st.integers(1, 4), position=st.integers(0, 9), K=st.integers(1, 12), real=st.integers(1, 12))
def test_a_monotonic_window_is_the_words_around_the_diagonal(radius, position, K, real):
    mask = (torch.arange(K) < min(real, K)).view(1, 1, 1, K)
    look = WINDOWS["local-m"](WIDTH, radius)(torch.zeros(1, 1, 3, WIDTH), position, mask)
    for q in range(3):
        expected = [j for j in range(min(real, K)) if abs(j - position - q) <= radius]
        assert look.mask[0, 0, q].nonzero().flatten().tolist() == expected


def test_a_predicted_centre_is_inside_the_sentence_and_learns():
    window = LocalPredictive(WIDTH, 2).double()
    mask = (torch.arange(9) < torch.tensor([[9], [4]])).view(2, 1, 1, 9)
    queries = torch.randn(2, 1, 3, WIDTH).double()
    look = window(queries, 0, mask)
    assert not (look.mask & ~mask).any()
    assert look.mask.any(-1).all(), "a window always holds a word"
    keys = torch.randn(2, 1, 9, WIDTH).double()
    score = SCORES["dot"](WIDTH, WIDTH, WIDTH)
    found = attend(queries, keys, keys, score=score, mask=look.mask, normalize=look.normalize, need_weights=True)
    assert (found.weights.sum(-1) <= 1).all()
    found.context.sum().backward()
    assert window.v_p.weight.grad.abs().sum() > 0


def test_no_equation_is_cited_for_a_score_and_for_a_window():
    """Luong et al. 2015: the content scores are equation 8, location 9, the predicted centre 10, its Gaussian 11."""
    cited = [
        {int(number) for part in parts.values() for number in re.findall(r"\d+", luongs_equations(part))}
        for parts in (SCORES, WINDOWS)
    ]
    assert cited == [{8, 9}, {10, 11}]


def luongs_equations(part: type) -> str:
    found = re.search(r"Luong et al\. 2015, (eq\. [\d and]+)", part.__doc__ or "")
    return found[1] if found else ""


def test_a_global_window_is_all_of_the_source():
    mask = torch.tensor([[[[True, True, False]]]])
    look = WINDOWS["global"](WIDTH, 1)(torch.zeros(1, 1, 2, WIDTH), 7, mask)
    assert look.mask is mask


def test_the_lively_models_of_the_suite_attend():
    batch = collate([(sentences([6])[0], sentences([5])[0])], [0])
    for name in ("rnn bahdanau", "rnn luong"):
        weights = make(name)(batch.source, batch.source_mask, batch.inputs, need_weights=True).attentions[0]
        assert weights.max() > 1.4 * weights.mean(), "nearly even weights would hide a broken law"
