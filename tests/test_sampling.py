"""Sampling: what is drawn, how often, and that nothing but the sentence and the seed decides it."""

import math
from collections import Counter
from itertools import product
from pathlib import Path

import pytest
import torch
from conftest import Command
from hypothesis import given, settings
from hypothesis import strategies as st
from models_under_test import MODELS, make, sentences
from test_invariants import answers, assert_same, forced
from test_search import WORDS, TableModel

import saccade
from saccade.data.batching import collate
from saccade.data.tokenizers import EOS
from saccade.errors import SaccadeError
from saccade.generation.loop import generate
from saccade.generation.noise import exponential, sentence_streams, split
from saccade.generation.rules import DEFAULT_RULES, min_length
from saccade.generation.sampling import Sample, min_p, top_k, top_p, truncations, typical
from saccade.generation.search import Greedy

LINES = ["January 5, 2021", "seventeen", "8:15 PM and seven euros", "", "Friday, March 28, 1986"]


def draws_of(model, sources, pad_to=None, seed=1, **options):
    batch = collate([(s, []) for s in sources], range(len(sources)), None if pad_to is None else (pad_to, 1))
    search = Sample(sentence_streams(batch.source, batch.source_mask, seed), **options)
    return answers(model, sources, search, pad_to)


def draws_of_table(model, sentence, draws, limit, seed=1, **options):
    source = torch.full((1, model.decoder.S), sentence)
    mask = torch.ones_like(source, dtype=torch.bool)
    search = Sample(sentence_streams(source, mask, seed), draws, **options)
    return generate(model, source, mask, search, torch.tensor([limit]))[0]


def assert_drawn_from(counts: Counter, chances: dict, draws: int) -> None:
    """Pearson's chi-square, with what is expected fewer than five times taken together; one in 30,000 fails."""
    assert set(counts) <= {what for what, chance in chances.items() if chance > 0}
    assert sum(chances.values()) == pytest.approx(1)
    cells, rare = [], [0.0, 0.0]
    for what, chance in chances.items():
        if chance * draws >= 5:
            cells.append([counts[what], chance * draws])
        else:
            rare[0] += counts[what]
            rare[1] += chance * draws
    if rare[1] >= 5:
        cells.append(rare)
    freedom = len(cells) - 1
    assert freedom > 0
    statistic = sum((seen - expected) ** 2 / expected for seen, expected in cells)
    # Wilson & Hilferty 1931: the cube root of chi-square over its mean is nearly normal.
    normal = ((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))
    assert normal < 4


def kept_by_hand(log_probs, temperature=1.0, k=0, p=1.0, minimum=0.0, typically=1.0):
    """Temperature, top-k, top-p, min-p and typical in turn, in plain numbers: {token: probability}."""

    def normal(chances):
        whole = sum(chances.values())
        return {token: chance / whole for token, chance in chances.items()}

    def making_up(chances, mass, order):
        kept, so_far = {}, 0.0
        for token in sorted(chances, key=order):
            if so_far >= mass and kept:
                break
            kept[token] = chances[token]
            so_far += chances[token]
        return normal(kept)

    chances = normal({v: math.exp(x / temperature) for v, x in enumerate(log_probs) if x > -math.inf})
    if k:
        chances = normal({v: chances[v] for v in sorted(chances, key=lambda v: -chances[v])[:k]})
    if p < 1:
        chances = making_up(chances, p, lambda v: -chances[v])
    if minimum:
        chances = normal({v: x for v, x in chances.items() if x >= minimum * max(chances.values())})
    if typically < 1:
        entropy = -sum(x * math.log(x) for x in chances.values())
        chances = making_up(chances, typically, lambda v: abs(entropy + math.log(chances[v])))
    return chances


def test_the_hash_is_splitmix64():
    """The first numbers of the published generator from the seed 0."""
    bits = split(torch.tensor(0), torch.arange(3)).tolist()
    assert [b % 2**64 for b in bits] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


@settings(max_examples=60, deadline=None)
@given(
    ids=st.lists(st.integers(4, 30_000), min_size=1, max_size=9), seed=st.integers(0, 2**63 - 1), pad=st.integers(0, 3)
)
def test_a_sentences_stream_is_a_chain_of_hashes_of_its_own_ids(ids, seed, pad):
    def mix(h, place):
        z = (h + (place + 1) * 0x9E3779B97F4A7C15) % 2**64
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
        return z ^ z >> 31

    expected = mix(0, seed)
    for token in ids:
        expected = mix(expected, token)
    source = torch.tensor([ids + [77] * pad, [5] * (len(ids) + pad)])
    mask = torch.tensor([[True] * len(ids) + [False] * pad, [True] * (len(ids) + pad)])
    assert sentence_streams(source, mask, seed)[0].item() % 2**64 == expected


def test_noise_is_exponential_and_the_rows_have_nothing_to_do_with_each_other():
    noise = exponential(split(torch.tensor(9), torch.arange(200)), 1000)
    assert noise.min() > 0
    assert noise.max() < math.inf
    uniform = 1 - torch.exp(-noise.double())
    cells = Counter((uniform * 50).long().flatten().tolist())
    assert_drawn_from(cells, dict.fromkeys(range(50), 1 / 50), uniform.numel())
    centred = uniform - 0.5
    for one, other in ((centred[:-1], centred[1:]), (centred[:, :-1], centred[:, 1:])):
        correlation = (one * other).sum() / (one.square().sum() * other.square().sum()).sqrt()
        assert abs(correlation) < 4 / math.sqrt(one.numel())


def test_the_extremes_of_the_noise_are_finite(monkeypatch):
    for bits in (0, -1):
        monkeypatch.setattr("saccade.generation.noise.split", lambda *_, bits=bits: torch.full((1, 1), bits))
        noise = exponential(torch.zeros(1, dtype=torch.long), 1)
        assert 0 < noise.item() < math.inf
        assert math.isfinite(noise.log().item())


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    sharp=st.sampled_from([0.5, 2.0, 5.0]),
    forbidden=st.integers(0, 5),
    temperature=st.sampled_from([0.5, 1.0, 2.0]),
    k=st.integers(0, 14),
    p=st.sampled_from([0.05, 0.5, 0.9, 1.0]),
    minimum=st.sampled_from([0.0, 0.05, 0.3, 1.0]),
    typically=st.sampled_from([0.1, 0.5, 0.9, 1.0]),
)
def test_truncations_are_their_definitions_in_the_published_order(
    seed, sharp, forbidden, temperature, k, p, minimum, typically
):
    log_probs = (torch.randn(2, 12, generator=torch.Generator().manual_seed(seed)).double() * sharp).log_softmax(-1)
    log_probs[:, :forbidden] = -math.inf
    weighed = log_probs / temperature
    for rule in truncations(k, p, minimum, typically):
        weighed = rule(weighed, None)
    for row, left in zip(log_probs.tolist(), weighed.softmax(-1).tolist(), strict=True):
        chances = kept_by_hand(row, temperature, k, p, minimum, typically)
        assert {v for v, chance in enumerate(left) if chance > 0} == set(chances)
        assert [left[v] for v in chances] == pytest.approx([*chances.values()])


def test_a_truncation_leaves_what_it_keeps_as_the_model_has_it():
    log_probs = torch.tensor([[0.5, 0.25, 0.15, 0.1]]).log()
    for rule, kept in ((top_k(2), 2), (top_p(0.7), 2), (min_p(0.3), 3), (typical(0.2), 1)):
        left = rule(log_probs, None)
        assert int(torch.isfinite(left).sum()) == kept
        assert torch.equal(left[torch.isfinite(left)], log_probs[torch.isfinite(left)])
    assert torch.isfinite(typical(0.2)(log_probs, None))[0].tolist() == [False, True, False, False]


OPTIONS = {
    "plain": {},
    "cool": {"temperature": 0.6},
    "hot, top-k": {"temperature": 1.7, "k": 3},
    "top-p": {"p": 0.8},
    "min-p": {"minimum": 0.2},
    "typical": {"typically": 0.7},
    "all": {"temperature": 1.3, "k": 4, "p": 0.95, "minimum": 0.05, "typically": 0.9},
}


@pytest.mark.parametrize("kind", OPTIONS)
@pytest.mark.parametrize("seed", [1, 2])
def test_translations_are_drawn_as_often_as_their_probability_says(kind, seed):
    """Whole translations of at most three words against the product of the chances of their tokens."""
    options = dict(OPTIONS[kind])
    model, draws, limit = TableModel(5, sharp=1.0), 4000, 4
    chances: dict[tuple[int, ...], float] = {}
    for length in range(limit):
        for words in product(WORDS, repeat=length):
            chance = 1.0
            for t, token in enumerate((*words, EOS)):
                log_probs = model.decoder.log_probs(0, words[:t]).tolist()
                allowed = [EOS] if t == limit - 1 else [*WORDS, EOS]
                step = kept_by_hand([x if v in allowed else -math.inf for v, x in enumerate(log_probs)], **options)
                chance *= step.get(token, 0.0)
            chances[words] = chance
    temperature = options.pop("temperature", 1.0)
    rules = truncations(*({"k": 0, "p": 1.0, "minimum": 0.0, "typically": 1.0} | options).values())
    drawn = draws_of_table(model, 0, draws, limit, seed, temperature=temperature, truncations=rules)
    assert len(drawn) == draws
    assert_drawn_from(Counter(tuple(h.tokens) for h in drawn), chances, draws)


def test_draws_of_different_seeds_and_sentences_have_nothing_to_do_with_each_other():
    model = TableModel(5, sharp=0.3)
    model.decoder.log_probs = lambda sentence, prefix: torch.zeros(7, dtype=torch.float64).log_softmax(-1)
    first = [tuple(h.tokens) for h in draws_of_table(model, 0, 300, 6)]
    assert first == [tuple(h.tokens) for h in draws_of_table(model, 0, 300, 6)]
    for other in (draws_of_table(model, 0, 300, 6, seed=2), draws_of_table(model, 1, 300, 6)):
        alike = sum(a == tuple(b.tokens) for a, b in zip(first, other, strict=True))
        assert alike < 50  # 23 by chance, most of them the empty translation


def test_a_draw_is_the_same_however_many_there_are():
    model, sources = make("rnn bahdanau"), sentences([5, 2, 7])
    for many, few in zip(draws_of(model, sources, draws=6), draws_of(model, sources, draws=2), strict=True):
        assert len(many) == 6
        assert_same(many[:2], few)


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=3, deadline=None)
@given(lengths=st.lists(st.integers(1, 9), min_size=2, max_size=6), seed=st.integers(0, 99), data=st.data())
def test_a_sentence_samples_the_same_in_any_batch_order_and_padding(name, lengths, seed, data):
    model = make(name, lively=1.0)
    sources = sentences(lengths, seed=seed)
    options = {"draws": 2, "temperature": 1.2, "truncations": truncations(12, 0.95, 0.01, 0.95), "seed": seed}
    alone = [draws_of(model, [source], **options)[0] for source in sources]
    order = data.draw(st.permutations(range(len(sources))))
    pad_to = max(lengths) + data.draw(st.integers(1, 4))
    together = draws_of(model, [sources[i] for i in order], pad_to, **options)
    for place, i in enumerate(order):
        assert_same(together[place], alone[i])


@pytest.mark.parametrize("name", MODELS)
def test_a_draw_has_the_models_own_log_probability_whatever_the_temperature(name):
    model, sources = make(name), sentences([2, 5, 8, 3], seed=11)
    for source, found in zip(sources, draws_of(model, sources, draws=2, temperature=2.5), strict=True):
        for hypothesis in found:
            log_probs, batch = forced(model, [(source, hypothesis.tokens)])
            own = log_probs.gather(-1, batch.gold.unsqueeze(-1)).sum().item()
            assert hypothesis.log_prob == pytest.approx(own, abs=1e-9)
            assert not {0, 1, 2, 3} & set(hypothesis.tokens)


def test_a_long_and_unlikely_draw_has_its_log_probability_to_a_ten_thousandth_in_float32():
    model, source = make("rnn bahdanau").float(), sentences([150], seed=4)[0]
    batch = collate([(source, [])], [0])
    search = Sample(sentence_streams(batch.source, batch.source_mask, 1), draws=8, temperature=50.0)
    rules = [*DEFAULT_RULES, min_length(200)]
    for hypothesis in generate(model, batch.source, batch.source_mask, search, torch.tensor([250]), rules)[0]:
        log_probs, batch = forced(model, [(source, hypothesis.tokens)])
        own = log_probs.gather(-1, batch.gold.unsqueeze(-1)).double().sum().item()
        assert hypothesis.log_prob == pytest.approx(own, abs=1e-4)


@pytest.mark.parametrize("options", [{"temperature": 1e-6}, {"truncations": [top_k(1)]}, {"truncations": [min_p(1.0)]}])
def test_what_leaves_one_choice_is_greedy_search(options):
    model, sources = make("transformer pre-norm"), sentences([4, 8, 2])
    for drawn, greedy in zip(draws_of(model, sources, **options), answers(model, sources, Greedy()), strict=True):
        assert_same(drawn, greedy)


def test_streams_of_other_sentences_are_refused():
    search = Sample(sentence_streams(torch.tensor([[5, 6]]), torch.tensor([[True, True]]), 1))
    with pytest.raises(SaccadeError, match="1 streams for 2 sentences"):
        answers(make("rnn cho"), sentences([3, 4]), search)


def test_a_folder_samples_the_same_in_any_batch_and_scores_what_it_drew(trained: Path) -> None:
    translator = saccade.load(trained)
    options = {"method": "sample", "n_best": 3, "temperature": 0.7, "top_p": 0.9, "seed": 4}
    together = translator.translate(LINES * 2, **options)
    compared = 0
    for one, again in zip(together[: len(LINES)], together[len(LINES) :], strict=True):
        alone = translator.translate(one.source, **options)
        assert [t.text for t in one.n_best] == [t.text for t in again.n_best] == [t.text for t in alone.n_best]
        tokenizer = translator.tokenizers.target
        for drawn in one.n_best:
            # The draw may have spelled the text otherwise than the tokenizer does.
            if tokenizer.pieces(tokenizer.encode(drawn.text)) == drawn.tokens:
                assert translator.score([drawn.source], [drawn.text])[0] == pytest.approx(drawn.score, abs=1e-4)
                compared += 1
    assert compared >= 4
    other = translator.translate(LINES, **{**options, "seed": 5})
    assert [t.text for t in other] != [t.text for t in together[: len(LINES)]]


def test_the_command_line_samples_as_python_does(trained: Path, command: Command) -> None:
    options = ["--method", "sample", "--temperature", 0.8, "--top-k", 9, "--top-p", 0.9, "--min-p", 0.01]
    options += ["--typical", 0.95, "--seed", 7, "--n-best", 2]
    done = command("translate", trained, *options, stdin="\n".join(LINES[:2]).encode())
    made = saccade.load(trained).translate(
        LINES[:2], method="sample", temperature=0.8, top_k=9, top_p=0.9, min_p=0.01, typical=0.95, seed=7, n_best=2
    )
    rows = [line.split(" ||| ") for line in done.out.splitlines()]
    assert [row[:2] for row in rows] == [[str(i), t.text] for i, one in enumerate(made) for t in one.n_best]


def test_many_draws_are_made_in_smaller_batches(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is for rows, and a sentence of 64 draws has 64 of them."""
    translator, rows = saccade.load(trained), []
    start = Sample.start

    def counted(search, limits, *rest):
        rows.append(limits.numel() * search.draws)
        return start(search, limits, *rest)

    monkeypatch.setattr(Sample, "start", counted)
    lines = [f"{n} days ago" for n in range(60)]
    few = translator.translate(lines, method="sample", n_best=2, batch_tokens=400, top_k=3)
    assert max(rows) <= 400 / 2 * 2
    rows.clear()
    many = translator.translate(lines, method="sample", n_best=64, batch_tokens=400, top_k=3)
    assert max(rows) <= 8 * 400 / 2
    assert len(rows) > 3
    assert [t.text for t in many] == [t.text for t in few], "the first draw of both"
