"""Contrastive search: it is its equation, for every decoder, in any batch."""

import math
from pathlib import Path

import pytest
import torch
from conftest import Command
from hypothesis import given, settings
from hypothesis import strategies as st
from models_under_test import MODELS, make, sentences
from served import serving
from test_decoding_invariants import in_batches
from test_invariants import answers, assert_same, forced
from test_placeholders import untrained
from test_search import TableModel, search_table

import saccade
from saccade.config import SearchConfig
from saccade.data.batching import collate
from saccade.data.tokenizers import BOS, EOS
from saccade.errors import SaccadeError
from saccade.generation.contrastive import Contrastive
from saccade.generation.guard import NGRAM, longest_cycle, repeated
from saccade.generation.loop import generate
from saccade.generation.rules import (
    DEFAULT_RULES,
    Prefixes,
    forbid,
    forced_prefix,
    min_length,
    no_repeat_ngram,
    repetition_penalty,
)
from saccade.generation.running import Running
from saccade.generation.search import Beam, Greedy
from saccade.generation.work import Errand
from saccade.serving.problems import Wrong
from saccade.serving.told import Told

every_model = pytest.mark.parametrize("name", MODELS)
LINES = ["January 5, 2021", "seventeen", "8:15 PM and seven euros", "", "Friday, March 28, 1986"]


@torch.no_grad()
def by_hand(model, source, limit, k, alpha, rules=DEFAULT_RULES, weighings=()):
    """The equation in plain numbers; for each candidate the whole target is read anew."""
    batch = collate([(source, [])], [0])

    def read(target):
        hidden = model(batch.source, batch.source_mask, torch.tensor([[BOS, *target]])).hidden
        return hidden[0, 1:], model.logits(hidden)[0, -1].log_softmax(-1)

    def cosine(a, b):
        return float(a @ b / (a.norm() * b.norm()))

    written: list[int] = []
    while True:
        log_probs = read(written)[1].unsqueeze(0)
        prefixes = Prefixes(torch.tensor([written], dtype=torch.long), torch.tensor([0]), torch.tensor([limit]))
        for rule in (*weighings, *rules):
            log_probs = rule(log_probs, prefixes)
        chances = {token: math.exp(x) for token, x in enumerate(log_probs[0].tolist()) if x > -math.inf}
        scores = {}
        for token in sorted(chances, key=lambda token: -chances[token])[:k]:
            *before, own = read([*written, token])[0]
            scores[token] = (1 - alpha) * chances[token]
            if before:
                scores[token] -= alpha * max(cosine(own, state) for state in before)
        best = max(scores, key=lambda token: scores[token])
        if best == EOS:
            return written
        written.append(best)


@every_model
@pytest.mark.parametrize(("k", "alpha"), [(4, 0.6), (3, 0.2), (2, 1.0), (30, 0.9)])
def test_it_is_the_papers_equation(name, k, alpha):
    model = make(name, lively=1.0)
    sources = sentences([4, 2, 6], seed=k)
    found = answers(model, sources, Contrastive(k, alpha))
    for source, (hypothesis,) in zip(sources, found, strict=True):
        assert hypothesis.tokens == by_hand(model, source, 2 * len(source) + 3, k, alpha)


@every_model
def test_under_rules_it_is_the_equation_over_what_they_leave(name):
    model, sources = make(name, lively=1.0), sentences([5, 3, 4], seed=7)
    batch = collate([(source, []) for source in sources], range(3))
    limits = torch.tensor([9, 7, 8])
    common = [*DEFAULT_RULES, forbid([7, 8]), min_length(4), no_repeat_ngram(2)]
    wanted = torch.tensor([[9, 10], [11, -1], [-1, -1]])
    rules, weighings = [forced_prefix(wanted, common)], [repetition_penalty(1.3)]
    found = generate(model, batch.source, batch.source_mask, Contrastive(4, 0.6), limits, rules, weighings)
    for i, (hypothesis,) in enumerate(found):
        own = [forced_prefix(wanted[i : i + 1], common)]
        assert hypothesis.tokens == by_hand(model, sources[i], int(limits[i]), 4, 0.6, own, weighings)
        log_probs, forced_batch = forced(model, [(sources[i], hypothesis.tokens)])
        log_prob = log_probs.gather(-1, forced_batch.gold.unsqueeze(-1)).sum().item()
        assert hypothesis.log_prob == pytest.approx(log_prob, abs=1e-9)
        assert 4 <= len(hypothesis.tokens) < limits[i]


@every_model
@pytest.mark.parametrize("search", [Contrastive(5, 0.0), Contrastive(1, 0.9)])
def test_without_a_penalty_or_a_choice_it_is_greedy_search(name, search):
    model, sources = make(name), sentences([2, 5, 8, 3], seed=9)
    for found, greedy in zip(answers(model, sources, search), answers(model, sources, Greedy()), strict=True):
        assert_same(found, greedy)


@every_model
@settings(max_examples=3, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 7), min_size=2, max_size=6),
    seed=st.integers(0, 99),
    at_once=st.integers(4, 30),
    data=st.data(),
)
def test_batch_order_padding_and_who_joins_never_change_the_answer(name, lengths, seed, at_once, data):
    model, search = make(name, lively=1.0), Contrastive(4, 0.6)
    sources = sentences(lengths, seed=seed)
    alone = [answers(model, [source], search)[0] for source in sources]
    order = data.draw(st.permutations(range(len(sources))))
    pad_to = max(lengths) + data.draw(st.integers(1, 4))
    together = answers(model, [sources[i] for i in order], search, pad_to)
    for place, i in enumerate(order):
        assert_same(together[place], alone[i])
    for joined, expected in zip(in_batches(model, sources, search, at_once), alone, strict=True):
        assert_same(joined, expected)


@every_model
def test_what_is_alive_elsewhere_in_the_batch_never_changes_an_answer(name):
    model, search = make(name, lively=1.0), Contrastive(3, 0.7)
    batch = collate([(s, []) for s in sentences([5, 4, 6, 7, 1], seed=4)], range(5))
    own = torch.tensor([11, 9, 12, 14, 4])
    for i in range(5):
        expected = generate(model, batch.source[i : i + 1], batch.source_mask[i : i + 1], search, own[i : i + 1])[0]
        for others in (1, 3, 17):
            limits = torch.where(torch.arange(5) == i, own, others)
            assert_same(generate(model, batch.source, batch.source_mask, search, limits)[i], expected)


@every_model
def test_scores_are_the_models_own_log_probabilities(name):
    model, sources = make(name), sentences([2, 5, 8, 3], seed=11)
    for source, (hypothesis,) in zip(sources, answers(model, sources, Contrastive(6, 0.5)), strict=True):
        log_probs, batch = forced(model, [(source, hypothesis.tokens)])
        own = log_probs.gather(-1, batch.gold.unsqueeze(-1)).sum().item()
        assert hypothesis.log_prob == pytest.approx(own, abs=1e-9)
        assert not {0, 1, 2, 3} & set(hypothesis.tokens)


@pytest.mark.parametrize(
    ("name", "limit"),
    [("transformer learned positions", 40), ("transformer prefix decoder-only, learned positions", 60 - 6)],
)
def test_the_end_is_not_read_where_a_model_has_no_position_for_it(name, limit):
    model, source = make(name), sentences([5])[0]
    batch = collate([(source, [])], [0])
    rules = [*DEFAULT_RULES, min_length(limit)]
    ((hypothesis,),) = generate(
        model, batch.source, batch.source_mask, Contrastive(3, 0.6), torch.tensor([limit]), rules
    )
    assert len(hypothesis.tokens) == limit - 1
    log_probs, forced_batch = forced(model, [(source, hypothesis.tokens)])
    own = log_probs.gather(-1, forced_batch.gold.unsqueeze(-1)).sum().item()
    assert hypothesis.log_prob == pytest.approx(own, abs=1e-9)


def test_a_running_batch_has_it_beside_beams_and_lets_go_of_what_is_dropped():
    model, sources = make("transformer pre-norm", lively=1.0), sentences([5, 3, 6, 4], seed=2)
    batch = collate([(source, []) for source in sources], range(4))
    limits = torch.tensor([2 * len(source) + 3 for source in sources])
    searches = {"contrastive": Contrastive(4, 0.6), "beam": Beam(4)}  # as many rows to a sentence: they share a lane
    running: Running[tuple[str, int]] = Running(model)
    found = {}
    for kind, search in searches.items():
        errand = Errand(batch.source, batch.source_mask, limits, search, DEFAULT_RULES)
        running.start(errand, [(kind, i) for i in range(4)])
        found.update(running.step())
    running.drop([("contrastive", 1)])
    while running.busy:
        found.update(running.step())
    for kind, search in searches.items():
        for i, expected in enumerate(answers(model, sources, search)):
            if (kind, i) in found:
                assert_same(found[kind, i], expected)
    assert len(found) >= 7


def test_a_model_that_loops_says_something_else():
    """The likeliest word is always the last one again; its state is that of the time before."""
    model = TableModel(0)

    def log_probs(sentence, prefix):
        chances = torch.full((7,), 1e-3, dtype=torch.float64)
        last = prefix[-1] if prefix else 4
        chances[last], chances[4 + (last - 3) % 3], chances[EOS] = 0.6, 0.3, 0.01
        return chances.log()

    model.decoder.log_probs = log_probs
    ((greedy,),) = search_table(model, [0], Greedy(), 10)
    ((contrastive,),) = search_table(model, [0], Contrastive(2, 0.9), 10)
    assert greedy.tokens == [4] * 9
    assert contrastive.tokens[:3] == [4, 5, 6]


def test_repetition_falls_as_the_penalty_grows():
    """Models with random weights go round in circles."""
    sources, shares = sentences([9, 12, 8, 11, 10, 7], seed=5), []
    for alpha in (0.0, 0.6, 0.9):
        found = [
            hypothesis.tokens
            for name in ("transformer pre-norm", "convs2s", "rnn bahdanau", "transformer causal decoder-only")
            for (hypothesis,) in answers(make(name, lively=1.0), sources, Contrastive(6, alpha))
        ]
        shares.append(sum(repeated(tokens, 2) for tokens in found) / len(found))
    assert shares[0] > 0.3, "the models of this test must repeat themselves"
    assert shares[1] < 0.7 * shares[0]
    assert shares[2] < 0.7 * shares[0]


@pytest.mark.parametrize("name", ["transformer pre-norm", "convs2s", "rnn bahdanau"])
def test_the_guard_watches_it_and_never_depends_on_the_batch(name):
    translator = untrained(name, "search.max_length_extra=40")
    told = {"method": "contrastive", "degeneration_penalty": 0.05, "protect": []}
    together = translator.translate(LINES, **told)
    bare = translator.translate(LINES, guard=False, **told)
    assert any(translation.notes for translation in together)
    for text, translation, unguarded in zip(LINES, together, bare, strict=True):
        alone = translator.translate(text, **told)
        assert (alone.text, alone.notes) == (translation.text, translation.notes)
        if longest_cycle(unguarded._ids, 4).tokens >= 16:
            assert f"decoded again without repeated {NGRAM}-grams" in translation.notes[1]


def test_a_folder_answers_the_same_in_any_batch_and_on_the_command_line(trained: Path, command: Command) -> None:
    translator = saccade.load(trained)
    told = {"method": "contrastive", "top_k": 4, "degeneration_penalty": 0.4}
    together = translator.translate(LINES * 2, **told)
    for one, again in zip(together[: len(LINES)], together[len(LINES) :], strict=True):
        assert one.text == again.text == translator.translate(one.source, **told).text
    options = ["--method", "contrastive", "--top-k", 4, "--degeneration-penalty", 0.4]
    done = command("translate", trained, *options, stdin="\n".join(LINES).encode())
    assert done.out.splitlines() == [t.text for t in together[: len(LINES)]]
    greedy = translator.translate(LINES, beam=1)
    assert [t.text for t in translator.translate(LINES, method="contrastive", degeneration_penalty=0.0)] == [
        t.text for t in greedy
    ]


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"n_best": 3}, r"search.n_best=3 with search.method=contrastive.*set search.method=sample"),
        ({"mbr": 4}, r"search.mbr=4 with search.method=contrastive.*leave search.mbr out"),
        ({"top_k": 65}, r"search.top_k=65 with search.method=contrastive.*64 at most"),
        ({"degeneration_penalty": 1.5}, r"search.degeneration_penalty"),
        ({"must": ["Tag"]}, r"search.must needs beam search; set search.method=beam \(now contrastive\)"),
    ],
)
def test_what_it_has_no_use_for_is_refused_by_name(trained: Path, told, why) -> None:
    with pytest.raises(SaccadeError, match=why):
        saccade.load(trained).translate("seventeen", method="contrastive", **told)


def test_nothing_is_reranked_and_no_ensemble_compared(trained: Path, second: Path, command: Command) -> None:
    for options, why in (
        (["--rerank", second], "reranking has nothing to choose from"),
        (["--ensemble", second], "an ensemble has several"),
    ):
        done = command("translate", trained, "--method", "contrastive", *options, stdin=b"seventeen\n")
        assert (done.status, done.out) == (2, "")
        assert why in " ".join(done.err.split())


def test_a_server_takes_as_many_candidates_as_hypotheses() -> None:
    assert Told(search={"method": "contrastive", "top_k": 16}).settings(5, 16)["top_k"] == 16
    assert Told(search={"method": "sample", "top_k": 100}).settings(5, 16)["top_k"] == 100
    with pytest.raises(Wrong, match=r"search.top_k=17 is more than the 16"):
        Told(search={"method": "contrastive", "top_k": 17}).settings(5, 16)


def test_a_server_answers_as_the_translator_does(trained: Path) -> None:
    told = {"method": "contrastive", "top_k": 4, "degeneration_penalty": 0.4}
    expected = [translation.text for translation in saccade.load(trained).translate(LINES * 3, **told)]
    with serving(trained, cache=0) as one:
        assert one.texts(LINES * 3, search=told) == expected


def test_ctranslate2_leaves_it_to_torch() -> None:
    pytest.importorskip("ctranslate2")
    from saccade.engines.ctranslate2 import CTranslate2Engine

    engine = CTranslate2Engine.__new__(CTranslate2Engine)  # what it can do is asked of the settings alone
    assert engine.obstacle(SearchConfig(method="contrastive")) == "search.method=contrastive"
    assert engine.obstacle(SearchConfig(degeneration_penalty=0.1)) is None, "of another method"
