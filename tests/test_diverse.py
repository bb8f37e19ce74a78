"""Diverse beam search against the paper's algorithm written out, and against beam search."""

from collections import Counter
from pathlib import Path

import pytest
from conftest import Command
from hypothesis import given, settings
from hypothesis import strategies as st
from models_under_test import MODELS, make, sentences
from test_invariants import answers, assert_same, forced
from test_search import WORDS, TableModel, brute_force, search_table

import saccade
from saccade.data.tokenizers import EOS
from saccade.errors import SaccadeError
from saccade.generation.diverse import DiverseBeam
from saccade.generation.search import Beam


def by_hand(model, sentence, search, limit):
    """Algorithm 1 of Vijayakumar et al. 2018 for one sentence: (score, words, log-probability), the best first."""
    beam, G = search.beam, search.groups
    K = beam.size // G
    wanted = min(K, beam.n_best)
    alive = [[(0.0, ())] for _ in range(G)]
    ended = [[] for _ in range(G)]
    done = [False] * G
    for t in range(limit):
        used = Counter()
        for g in range(G):
            if done[g]:
                continue
            options = []
            for log_prob, words in alive[g]:
                step = model.decoder.log_probs(sentence, words)
                for token in [EOS] if t == limit - 1 else [*WORDS, EOS]:
                    own = log_prob + step[token].item()
                    options.append((own - search.diversity * used[token], own, words, token))
            options.sort(reverse=True)
            for _, own, words, token in options[:K]:
                if token == EOS:
                    looked = sum(model.decoder.attention(sentence, words[:i]) for i in range(len(words) + 1))
                    covered = beam.coverage_penalty * looked.clamp(max=1.0).log().sum().item()
                    score = own / ((5 + len(words) + 1) / 6) ** beam.length_penalty + covered
                    ended[g].append((score, list(words), own))
            ended[g].sort(reverse=True)
            alive[g] = [(own, (*words, token)) for _, own, words, token in options[: 2 * K] if token != EOS][:K]
            used.update(token for *_, token in options[:K])
            bound = max((own for own, _ in alive[g]), default=-float("inf")) / ((5 + limit) / 6) ** beam.length_penalty
            enough = len(ended[g]) >= wanted and ended[g][wanted - 1][0] >= bound
            done[g] = not alive[g] or enough or (K == 1 and bool(ended[g]))
    found = {}
    for score, words, own in sorted((one for group in ended for one in group[:wanted]), reverse=True):
        found.setdefault(tuple(words), (score, words, own))
    return [*found.values()][: beam.n_best]


def assert_found(found, expected):
    assert [h.tokens for h in found] == [words for _, words, _ in expected]
    assert [h.score for h in found] == pytest.approx([score for score, _, _ in expected])
    assert [h.log_prob for h in found] == pytest.approx([log_prob for _, _, log_prob in expected])


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    shape=st.sampled_from([(2, 2), (4, 2), (6, 3), (6, 2), (5, 5), (3, 1)]),
    diversity=st.sampled_from([0.0, 0.3, 1.0, 5.0]),
    alpha=st.sampled_from([0.0, 1.0]),
    beta=st.sampled_from([0.0, 0.4]),
    n_best=st.sampled_from([1, 2]),
)
def test_it_is_the_papers_algorithm(seed, shape, diversity, alpha, beta, n_best):
    model, limit = TableModel(seed), 6
    search = DiverseBeam(Beam(shape[0], alpha, beta, n_best), shape[1], diversity)
    for sentence, found in enumerate(search_table(model, [0, 1, 2], search, limit)):
        assert_found(found, by_hand(model, sentence, search, limit))


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    groups=st.integers(1, 3),
    diversity=st.sampled_from([0.0, 0.5, 2.0]),
    alpha=st.sampled_from([0.0, 0.6, 1.0, 2.0]),
    beta=st.sampled_from([0.0, 0.3, 1.0]),
    n_best=st.sampled_from([1, 3, 5]),
)
def test_groups_wide_enough_find_what_brute_force_finds(seed, groups, diversity, alpha, beta, n_best):
    model, limit = TableModel(seed), 3
    beam = Beam(groups * 4**limit, alpha, beta, n_best)
    for sentence, found in enumerate(search_table(model, [0, 1], DiverseBeam(beam, groups, diversity), limit)):
        assert_found(found, brute_force(model, sentence, beam, limit)[:n_best])


@pytest.mark.parametrize("name", MODELS)
def test_one_group_is_beam_search(name):
    model, sources = make(name), sentences([2, 5, 8, 3], seed=9)
    for beam in (Beam(4, 0.8, 0.0, 3), Beam(3, 1.0, 0.0, 1, stop_at_size=True)):
        plain = answers(model, sources, beam)
        for found, expected in zip(answers(model, sources, DiverseBeam(beam, 1, 7.0)), plain, strict=True):
            assert found == expected


@pytest.mark.parametrize("name", MODELS)
def test_batch_order_and_padding_never_change_the_answer_and_scores_are_the_models_own(name):
    model, sources = make(name), sentences([6, 2, 9, 4], seed=3)
    search = DiverseBeam(Beam(4, 0.7, 0.0, 4), 2, 1.0)
    together = answers(model, sources[::-1], search, pad_to=13)[::-1]
    for source, found in zip(sources, together, strict=True):
        assert_same(found, answers(model, [source], search)[0])
        for hypothesis in found:
            log_probs, batch = forced(model, [(source, hypothesis.tokens)])
            own = log_probs.gather(-1, batch.gold.unsqueeze(-1)).sum().item()
            assert hypothesis.log_prob == pytest.approx(own, abs=1e-9)


def test_more_diversity_gives_translations_that_share_less():
    model = TableModel(3, sharp=2.0)

    def shared(diversity):
        """Of all pairs of hypotheses, how many begin alike."""
        search = DiverseBeam(Beam(4, 1.0, 0.0, 4), 4, diversity)
        found = search_table(model, list(range(40)), search, 6)
        firsts = [[h.tokens[:1] for h in hypotheses] for hypotheses in found]
        return sum(sum(a == b for a in several for b in several) / len(several) ** 2 for several in firsts)

    assert shared(0.0) > shared(1.0) > shared(10.0)


def test_no_translation_comes_twice():
    for found in search_table(TableModel(4), list(range(10)), DiverseBeam(Beam(6, 1.0, 0.0, 6), 3, 0.0), 6):
        assert len({tuple(h.tokens) for h in found}) == len(found)


def test_groups_that_do_not_divide_the_beam_are_refused_by_name(trained: Path, command: Command) -> None:
    with pytest.raises(SaccadeError, match=r"search.groups=2 does not divide search.beam=5"):
        saccade.load(trained).translate("seventeen", method="diverse", groups=2)
    done = command("translate", trained, "--method", "diverse", "--groups", 2, stdin=b"seventeen\n")
    assert (done.status, done.out) == (2, "")


def test_a_folder_translates_in_groups(trained: Path, command: Command) -> None:
    options = {"method": "diverse", "beam": 4, "groups": 2, "diversity": 3.0, "n_best": 4}
    one = saccade.load(trained).translate("Friday, March 28, 1986", **options)
    plain = saccade.load(trained).translate("Friday, March 28, 1986", beam=4, n_best=4)
    assert [t.text for t in one.n_best] != [t.text for t in plain.n_best]
    line = ["--method", "diverse", "--beam", 4, "--groups", 2, "--diversity", 3, "--n-best", 4]
    done = command("translate", trained, *line, stdin=b"Friday, March 28, 1986\n")
    assert [row.split(" ||| ")[1] for row in done.out.splitlines()] == [t.text for t in one.n_best]
