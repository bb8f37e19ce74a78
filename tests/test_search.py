"""Search against brute force, on tables small enough to write out."""

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from saccade.data.tokenizers import EOS
from saccade.errors import SaccadeError
from saccade.generation.loop import generate
from saccade.generation.search import Beam, BeamRun, Greedy
from saccade.models.protocol import DecoderOutput, EncoderDecoder, Memory

WORDS = [4, 5, 6]  # beside them only EOS can be written
V = 7


class TableState:
    """Remembers the prefix of each row, and which sentence it is."""

    def __init__(self, prefixes, sentences):
        self.prefixes, self.sentences = prefixes, sentences

    def select(self, indices):
        return TableState([self.prefixes[i] for i in indices.tolist()], self.sentences[indices])


class Table(torch.nn.Module):
    """A "decoder" whose distribution after each prefix, and attention, is drawn once and looked up."""

    def __init__(self, seed, source_length, sharp=1.5):
        super().__init__()
        self.seed, self.S, self.sharp = seed, source_length, sharp

    def _draw(self, sentence, prefix, size, what):
        key = hash((self.seed, sentence, prefix, what)) % 2**31
        return torch.randn(size, generator=torch.Generator().manual_seed(key), dtype=torch.float64)

    def log_probs(self, sentence, prefix):
        return (self._draw(sentence, prefix, V, 0) * self.sharp).log_softmax(-1)

    def attention(self, sentence, prefix):
        return self._draw(sentence, prefix, self.S, 1).softmax(-1)

    def init_state(self, memory, capacity=None):
        return TableState([()] * memory.states.size(0), memory.states[:, 0, 0].long())

    def forward(self, tokens, state, need_weights=False):
        prefixes = [(*p, t) if t != 1 else p for p, t in zip(state.prefixes, tokens[:, 0].tolist(), strict=True)]
        keys = list(zip(state.sentences.tolist(), prefixes, strict=True))
        hidden = torch.stack([self.log_probs(*key) for key in keys]).unsqueeze(1)
        weights = torch.stack([self.attention(*key) for key in keys])[:, None, None]
        return DecoderOutput(hidden, TableState(prefixes, state.sentences), (weights,) if need_weights else None)

    def project(self, hidden):
        return hidden


class TableModel(EncoderDecoder):
    def __init__(self, seed, source_length=3, sharp=1.5):
        super().__init__(torch.nn.Identity(), Table(seed, source_length, sharp))

    def encode(self, source, mask):
        return Memory(source[:, :1].unsqueeze(-1).double(), mask)


def search_table(model, sentences, search, limit):
    source = torch.tensor(sentences).unsqueeze(1).expand(-1, model.decoder.S)
    limits = torch.full((len(sentences),), limit)
    return generate(model, source, torch.ones_like(source, dtype=torch.bool), search, limits)


def brute_force(model, sentence, search, limit):
    """Every sequence of at most `limit` tokens that ends, with its log-probability and penalised score."""
    table, found = model.decoder, []
    for length in range(limit):
        for words in product(WORDS, repeat=length):
            sequence = (*words, EOS)
            log_prob = sum(table.log_probs(sentence, words[:t])[token].item() for t, token in enumerate(sequence))
            looked = sum(table.attention(sentence, words[:t]) for t in range(len(sequence)))
            coverage = looked.clamp(max=1.0).log().sum().item()
            penalty = ((5 + len(sequence)) / 6) ** search.length_penalty
            found.append((log_prob / penalty + search.coverage_penalty * coverage, list(words), log_prob))
    return sorted(found, reverse=True)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    alpha=st.sampled_from([0.0, 0.4, 1.0, 2.0]),
    beta=st.sampled_from([0.0, 0.3, 1.0]),
    n_best=st.sampled_from([1, 3, 5]),
    sharp=st.sampled_from([0.3, 1.5, 4.0]),
)
def test_beam_search_equals_brute_force(seed, alpha, beta, n_best, sharp):
    model, limit = TableModel(seed, sharp=sharp), 4
    search = Beam(size=len(WORDS) ** limit, length_penalty=alpha, coverage_penalty=beta, n_best=n_best)
    for sentence, found in enumerate(search_table(model, [0, 1], search, limit)):
        expected = brute_force(model, sentence, search, limit)[:n_best]
        assert [h.tokens for h in found] == [words for _, words, _ in expected]
        assert [h.score for h in found] == pytest.approx([score for score, _, _ in expected])
        assert [h.log_prob for h in found] == pytest.approx([log_prob for _, _, log_prob in expected])


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    size=st.integers(2, 5),
    alpha=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    beta=st.sampled_from([0.0, 0.5]),
)
def test_early_stopping_never_loses_the_best(seed, size, alpha, beta):
    """Stopping by the bound gives what the same search gives when it always runs to the limit."""
    model, limit = TableModel(seed), 9
    search = Beam(size, alpha, beta, n_best=1)
    stopped = search_table(model, [0, 1, 2], search, limit)

    def none_alive(run):
        return torch.isinf(run.log_prob.amax(1))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BeamRun, "_done", none_alive)
        patient = search_table(model, [0, 1, 2], search, limit)
    assert [found[0].tokens for found in stopped] == [found[0].tokens for found in patient]


def test_a_wider_beam_finds_what_greedy_misses():
    """After 4 everything is unsure; 5 is the second choice at first and leads to a sure ending."""
    model = TableModel(0)
    choices = {(): {4: 0.6, 5: 0.4}, (4,): {4: 0.3, 5: 0.3, 6: 0.4}, (5,): {EOS: 1.0}}

    def log_probs(sentence, prefix):
        chances = torch.full((V,), 1e-12, dtype=torch.float64)
        for token, chance in choices.get(prefix, {EOS: 1.0}).items():
            chances[token] = chance
        return chances.log()

    model.decoder.log_probs = log_probs
    (greedy,) = search_table(model, [0], Greedy(), 6)
    (beam,) = search_table(model, [0], Beam(2, 0.0), 6)
    assert greedy[0].tokens == [4, 6]
    assert greedy[0].log_prob == pytest.approx(torch.tensor(0.24).log().item(), abs=1e-6)
    assert beam[0].tokens == [5]
    assert beam[0].log_prob == pytest.approx(torch.tensor(0.4).log().item(), abs=1e-6)


@pytest.mark.parametrize("search", [Greedy(), Beam(1), Beam(4)])
def test_no_answer_is_longer_than_its_limit(search):
    model = TableModel(3)
    model.decoder.log_probs = lambda sentence, prefix: torch.tensor([0, 0, -50.0, 0, 0, 0, 0]).double().log_softmax(-1)
    source = torch.zeros(3, 3, dtype=torch.long)
    limits = torch.tensor([1, 4, 9])
    found = generate(model, source, torch.ones_like(source, dtype=torch.bool), search, limits)
    assert [len(hypotheses[0].tokens) for hypotheses in found] == [0, 3, 8]


def test_longer_answers_win_as_the_length_penalty_grows():
    model = TableModel(12, sharp=3.0)
    lengths = [
        sum(len(found[0].tokens) for found in search_table(model, list(range(20)), Beam(20, alpha), 8))
        for alpha in (0.0, 2.0, 6.0)
    ]
    assert lengths[0] < lengths[1] < lengths[2]


def test_a_coverage_penalty_needs_a_model_that_attends():
    from models_under_test import make, sentences
    from test_invariants import answers

    with pytest.raises(SaccadeError, match="coverage_penalty"):
        answers(make("rnn cho"), sentences([4]), Beam(2, 1.0, 0.5))
