"""What the quick roads of decoding must never change: answers."""

import copy
import gc
import warnings
import weakref

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from models_under_test import MODELS, make, sentences
from test_invariants import answers, assert_same, forced

import saccade
from saccade.attention.multihead import Joint, KeyValue, Step
from saccade.data.batching import collate
from saccade.generation import captured
from saccade.generation.captured import Captured, replayed
from saccade.generation.loop import generate
from saccade.generation.rules import DEFAULT_RULES, forbid, no_specials
from saccade.generation.search import Beam, Greedy, top
from saccade.models.lean import Lean, on_gpu, suits
from saccade.models.packing import PackedLinear, can_pack, pack
from saccade.models.protocol import Memory, SharedState

every_model = pytest.mark.parametrize("name", MODELS)
every_transformer = pytest.mark.parametrize(
    "name", [name for name in MODELS if "transformer" in name and "decoder-only" not in name]
)
SEARCHES = {"greedy": Greedy(), "beam": Beam(3, 0.8, 0.0, 3), "beam, stop at size": Beam(2, 0.5, stop_at_size=True)}


def in_batches(model, sources, search, at_once):
    batch = collate([(s, []) for s in sources], range(len(sources)))
    limits = torch.tensor([2 * len(s) + 3 for s in sources])
    return generate(model, batch.source, batch.source_mask, search, limits, at_once=at_once)


@every_model
@pytest.mark.parametrize("kind", SEARCHES)
@settings(max_examples=4, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 7), min_size=3, max_size=7),
    seed=st.integers(0, 99),
    at_once=st.integers(4, 30),
    longest_first=st.booleans(),
)
def test_sentences_that_join_those_at_work_never_change_an_answer(name, kind, lengths, seed, at_once, longest_first):
    model = make(name)
    sources = sentences(sorted(lengths, reverse=True) if longest_first else lengths, seed=seed)
    together = in_batches(model, sources, SEARCHES[kind], at_once)
    for source, found in zip(sources, together, strict=True):
        assert_same(found, answers(model, [source], SEARCHES[kind])[0])


@every_model
def test_what_is_alive_elsewhere_in_the_batch_never_changes_an_answer(name):
    """Beside sentences that may write one token, or a few, or many more than this one."""
    model = make(name)
    sources = sentences([5, 4, 6, 7, 1], seed=4)
    batch = collate([(s, []) for s in sources], range(len(sources)))
    own = [11, 9, 12, 14, 4]
    for search in SEARCHES.values():
        expected = {
            i: generate(model, batch.source[i : i + 1], batch.source_mask[i : i + 1], search, torch.tensor([own[i]]))[0]
            for i in (0, 2, 4)
        }
        for others in (1, 3, 17):
            for alone in expected:
                limits = torch.tensor([own[i] if i == alone else others for i in range(len(sources))])
                found = generate(model, batch.source, batch.source_mask, search, limits)
                assert_same(found[alone], expected[alone])


@every_model
def test_scores_in_float32_are_the_models_own_to_a_ten_thousandth(name):
    model = make(name, lively=1.0).float()
    pack(model)
    sources = sentences([2, 5, 8, 3, 6], seed=11)
    for source, found in zip(sources, in_batches(model, sources, Beam(4, 1.0, 0.0, 4), 20), strict=True):
        for hypothesis in found:
            log_probs, batch = forced(model, [(source, hypothesis.tokens)])
            own = log_probs.gather(-1, batch.gold.unsqueeze(-1)).sum().item()
            assert hypothesis.log_prob == pytest.approx(own, abs=1e-4)


def test_translations_have_the_score_that_score_gives_them(trained):
    translator = saccade.load(trained)
    sources = ["January 5, 2021", "3", "twelve", "May 1, 1999", "seven hundred and two", "March 30, 2010", "19"]
    translations = translator.translate(sources, beam=4, n_best=4, batch_tokens=24)
    for source, best in zip(sources, translations, strict=True):
        for found in best.n_best:
            # The same text may be cut into other pieces than those the search found.
            if translator.tokenizers.target.encode(found.text) == found._ids:
                assert translator.score([source], [found.text])[0] == pytest.approx(found.score, abs=1e-4)
    one_by_one = [translator.translate(source, beam=4).text for source in sources]
    assert one_by_one == [translation.text for translation in translations]


@every_model
@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 999), size=st.integers(1, 3))
def test_beams_that_share_are_beams_that_copy(name, seed, size):
    """Any walk of steps, reorderings, leavings and joinings, against rows that are copied by `select`."""
    model = make(name)
    draw = torch.Generator().manual_seed(seed)
    batches = [collate([(s, []) for s in sentences(lengths, seed=seed)], [0, 1, 2]) for lengths in ([4, 6, 2], [7, 1])]
    shared = model.init_state(model.encode(batches[0].source, batches[0].source_mask), capacity=20)
    if not isinstance(shared, SharedState):
        assert "transformer" not in name or "decoder-only" in name
        return
    plain = shared.select(torch.arange(3).repeat_interleave(size))
    shared = shared.beams(size)

    def step(shared, plain, rows):
        tokens = torch.randint(4, 20, (rows, 1), generator=draw)
        outputs = model.decode(tokens, shared, True), model.decode(tokens, plain, True)
        torch.testing.assert_close(outputs[0].hidden, outputs[1].hidden, rtol=0, atol=1e-10)
        for a, b in zip(outputs[0].attentions, outputs[1].attentions, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-10)
        return outputs[0].state, outputs[1].state

    for _ in range(3):
        shared, plain = step(shared, plain, 3 * size)
        parents = torch.randint(0, size, (3, size), generator=draw) + torch.arange(3).unsqueeze(1) * size
        shared, plain = shared.follow(parents.flatten()), plain.select(parents.flatten())
    kept = torch.tensor([2, 0])
    rows = (kept.unsqueeze(1) * size + torch.arange(size)).flatten()
    shared, plain = shared.keep(kept), plain.select(rows)
    shared, plain = step(shared, plain, 2 * size)
    late = model.init_state(model.encode(batches[1].source, batches[1].source_mask), capacity=14)
    joined = shared.join(late.beams(size))
    late = late.select(torch.arange(2).repeat_interleave(size))
    for _ in range(3):
        tokens = torch.randint(4, 20, (4 * size, 1), generator=draw)
        together = model.decode(tokens, joined)
        apart = [model.decode(tokens[: 2 * size], plain), model.decode(tokens[2 * size :], late)]
        torch.testing.assert_close(together.hidden, torch.cat([part.hidden for part in apart]), rtol=0, atol=1e-10)
        parents = torch.randint(0, size, (4, size), generator=draw) + torch.arange(4).unsqueeze(1) * size
        joined = together.state.follow(parents.flatten())
        plain = apart[0].state.select(parents[:2].flatten())
        late = apart[1].state.select(parents[2:].flatten() - 2 * size)
    chosen = torch.randint(0, 4 * size, (5,), generator=draw)  # any rows at all
    tokens = torch.randint(4, 20, (5, 1), generator=draw)
    found = model.decode(tokens, joined.select(chosen)).hidden
    rows = [
        model.decode(t.view(1, 1), (plain if i < 2 * size else late).select(torch.tensor([i % (2 * size)]))).hidden
        for i, t in zip(chosen.tolist(), tokens, strict=True)
    ]
    torch.testing.assert_close(found, torch.cat(rows), rtol=0, atol=1e-10)


@every_model
def test_sources_read_apart_are_sources_read_together(name):
    model = make(name)
    sources = sentences([3, 8, 5], seed=6)
    batch = collate([(s, []) for s in sources], range(3))
    parts = [collate([(s, []) for s in part], range(len(part))) for part in (sources[:1], sources[1:])]
    apart = Memory.together([model.encode(part.source, part.source_mask) for part in parts])
    tokens = torch.tensor([[1, 5, 6], [1, 7, 8], [1, 9, 4]])
    found = model.decode(tokens, model.init_state(apart)).hidden
    expected = model.decode(tokens, model.init_state(model.encode(batch.source, batch.source_mask))).hidden
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.integers(1, 700), st.integers(1, 12), st.integers(0, 999))
def test_the_best_by_blocks_are_the_best(rows, width, count, seed):
    x = torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))
    x[:, ::3] = -float("inf")
    count = min(count, width)
    values, places = top(x, count)
    assert torch.equal(values, x.topk(count, dim=1).values)
    assert torch.equal(x.gather(1, places), values)
    finite = values.isfinite()
    assert all(len(set(row[ok].tolist())) == int(ok.sum()) for row, ok in zip(places, finite, strict=True))


@pytest.mark.parametrize("rows", [1, 2, 5, 64])
@pytest.mark.parametrize(("inner", "outer"), [(8, 40), (40, 8), (16, 16)])
def test_packed_weights_give_what_the_weights_give(rows, inner, outer):
    torch.manual_seed(rows)
    holder = torch.nn.Sequential(torch.nn.Linear(inner, outer))
    plain = copy.deepcopy(holder)
    pack(holder)
    if can_pack():
        assert isinstance(holder[0], PackedLinear)
    assert holder.state_dict().keys() == plain.state_dict().keys()
    x = torch.randn(rows, 1, inner)
    with torch.inference_mode():
        torch.testing.assert_close(holder(x), plain(x))
        torch.testing.assert_close(copy.deepcopy(holder)(x), plain(x))
    with torch.no_grad():  # weights that change are packed again
        holder[0].weight.mul_(2.0)
        torch.testing.assert_close(holder(x), F.linear(x, 2 * plain[0].weight, plain[0].bias))
    holder(x).sum().backward()
    assert holder[0].weight.grad is not None


@every_transformer
@pytest.mark.parametrize("kind", SEARCHES)
@pytest.mark.parametrize("calls", ["as on a GPU", "layer by layer"])
def test_steps_over_fixed_storage_find_what_the_loop_finds(name, kind, calls, monkeypatch):
    """The very code that a GPU captures, run as it is, over the same storage: no batch sees what another has left."""
    model = make(name)
    layers = list(model.decoder.layers)
    if calls == "as on a GPU":
        if not all(map(suits, layers)):
            pytest.skip("goes through its layers on a GPU too")
        monkeypatch.setattr("saccade.models.transformer.lean", lambda layers: Lean(layers, on_gpu))
    rules = (*DEFAULT_RULES, forbid([7]))
    for lengths, seed in (([5, 9, 2, 14], 1), ([3, 4, 16], 2), ([6], 3), ([13, 1, 8, 7], 4)):
        sources = sentences(lengths, seed=seed)
        batch = collate([(s, []) for s in sources], range(len(sources)))
        limits = torch.tensor([min(2 * len(s) + 3, 33) for s in sources])
        parts = model, batch.source, batch.source_mask, SEARCHES[kind], limits, rules
        with monkeypatch.context() as plainly:
            plainly.setattr("saccade.models.transformer.lean", lambda layers: None)
            expected = generate(*parts)
        with torch.inference_mode():
            found = replayed(*parts)
        for a, b in zip(found, expected, strict=True):
            assert_same(a, b)


def test_storage_in_one_tensor_is_filled_as_storage_in_two():
    qkv = torch.randn(3, 2, 4, 3, 8)  # (2 sentences, 4 heads, 3 rows of a beam, 8 wide)
    apart = KeyValue(torch.zeros(2, 4, 15, 8), torch.zeros(2, 4, 15, 8))
    joint = Joint.of(torch.zeros(2, 2, 4, 15, 8)).up_to(12)
    for position in (0, 3):
        q, read = Step(torch.tensor(position), 4, 3).take(joint, qkv)
        expected = Step(position, position + 1, 3).take(apart, qkv)[1]
        assert torch.equal(q, qkv[0])
        assert all(map(torch.equal, read.up_to(3 * position + 3), expected))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@every_transformer
@pytest.mark.parametrize("kind", SEARCHES)
def test_on_a_gpu_captured_steps_find_what_a_cpu_finds_wherever_the_sources_are(name, kind):
    model = make(name).float()
    batch = collate([(s, []) for s in sentences([5, 9, 2, 14], seed=1)], range(4))
    parts = batch.source, batch.source_mask, SEARCHES[kind], torch.tensor([13, 21, 7, 31])
    expected = generate(model, *parts)
    model.cuda()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="a step could not be captured|Triton cannot be used")
        there = generate(model, *(part.cuda() if isinstance(part, torch.Tensor) else part for part in parts))
        for found in (generate(model, *parts), there):
            for one, other in zip(found, expected, strict=True):
                assert [h.tokens for h in one] == [h.tokens for h in other]
                assert [h.log_prob for h in one] == pytest.approx([h.log_prob for h in other], abs=1e-3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("kind", SEARCHES)
@pytest.mark.parametrize("rounded", [False, True])
def test_on_a_gpu_captured_steps_follow_weights_that_change(kind, rounded):
    """As from one validation of a run to the next, which may be under autocast; and they answer the same every time."""
    model = make("transformer post-norm").float().cuda()
    batch = collate([(s, []) for s in sentences([5, 9, 2, 14], seed=1)], range(4))
    limits = torch.tensor([13, 21, 7, 31])

    def found(model):
        with torch.autocast("cuda", torch.bfloat16, enabled=rounded), warnings.catch_warnings():
            warnings.filterwarnings("error", message="a step could not be captured|Triton cannot be used")
            return generate(model, batch.source, batch.source_mask, SEARCHES[kind], limits)

    before = found(model)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(0.8)
    expected = found(copy.deepcopy(model))
    assert expected != before
    for _ in range(20):
        for one, other in zip(found(model), expected, strict=True):
            assert [h.tokens for h in one] == [h.tokens for h in other]
            assert [h.log_prob for h in one] == pytest.approx([h.log_prob for h in other], abs=1e-3)


@pytest.mark.parametrize("first", [True, False], ids=["before", "after"])
@torch.inference_mode()
def test_steps_captured_under_autocast_serve_autocast_alone(first):
    """A run validates under autocast, and the folder it leaves is scored without, by one model."""
    batch = collate([(s, []) for s in sentences([5, 9, 2, 14], seed=1)], range(4))
    parts = batch.source, batch.source_mask, Greedy(), torch.tensor([13, 21, 7, 31]), DEFAULT_RULES

    def found(model, rounded):
        with torch.autocast("cpu", torch.bfloat16, enabled=rounded):
            return [(one.tokens, one.log_prob) for (one,) in replayed(model, *parts)]

    model = make("transformer post-norm").float()
    expected = found(make("transformer post-norm").float(), not first)
    assert found(model, first) != expected
    assert found(model, not first) == expected


@pytest.mark.parametrize("kind", SEARCHES)
@torch.inference_mode()
def test_a_step_that_is_not_needed_changes_no_result(kind):
    """A GPU is a step ahead of what is known, and results are read while it takes that step."""
    model = make("transformer post-norm").float()
    batch = collate([(s, []) for s in sentences([5, 9, 2, 14], seed=1)], range(4))
    limits = torch.tensor([13, 21, 7, 30])
    expected = replayed(model, batch.source, batch.source_mask, SEARCHES[kind], limits, DEFAULT_RULES)
    (kept,) = captured._CAPTURES[model].values()
    for _ in range(2):
        kept._step_over(32)()
        assert kept.search.results()[:4] == expected


@torch.inference_mode()
def test_what_is_captured_under_autocast_reads_the_weights_themselves(monkeypatch):
    """Not casts of them, which autocast would keep until it ends, and a graph would read for good."""
    model, kept = make("transformer post-norm").float(), []
    encode = type(model).encode

    def seen(*given):
        kept.append(torch.is_autocast_cache_enabled())
        return encode(*given)

    monkeypatch.setattr(type(model), "encode", seen)
    batch = collate([(s, []) for s in sentences([5, 9], seed=1)], range(2))
    with torch.autocast("cpu", torch.bfloat16):
        assert replayed(model, batch.source, batch.source_mask, Greedy(), torch.tensor([5, 6]), DEFAULT_RULES)
        assert torch.is_autocast_cache_enabled()
    assert kept
    assert not any(kept)


def test_what_is_captured_goes_with_its_model():
    model = make("transformer pre-norm")
    source = torch.randint(4, 20, (2, 5))
    with torch.inference_mode():
        limits = torch.tensor([5, 6])
        assert replayed(model, source, torch.ones_like(source, dtype=torch.bool), Beam(2), limits, DEFAULT_RULES)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("error", [RuntimeError, OSError, type("TritonError", (Exception,), {})])
def test_a_capture_that_fails_leaves_the_work_to_the_loop(error, monkeypatch):
    model = make("transformer pre-norm")
    source = torch.randint(4, 20, (2, 5))
    mask, limits = torch.ones_like(source, dtype=torch.bool), torch.tensor([5, 6])

    def fails(self, window):
        raise error("out of memory")

    monkeypatch.setattr(Captured, "_step_over", fails)
    with torch.inference_mode(), pytest.warns(UserWarning, match="goes on without: out of memory"):
        assert replayed(model, source, mask, Greedy(), limits, DEFAULT_RULES) is None
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("error")
        assert replayed(model, source, mask, Greedy(), limits, DEFAULT_RULES) is None


def test_what_cannot_be_captured_is_left_to_the_loop():
    model = make("transformer pre-norm")
    source = torch.randint(4, 20, (2, 5))
    mask, limits = torch.ones_like(source, dtype=torch.bool), torch.tensor([5, 6])

    def captured(search, rules=DEFAULT_RULES, model=model):
        with torch.inference_mode():
            return replayed(model, source, mask, search, limits, rules) is not None

    assert captured(Greedy())
    assert captured(Beam(2))
    assert not captured(Beam(2, 1.0, 0.5)), "coverage asks where a step looked"
    assert not captured(Greedy(), (*DEFAULT_RULES, lambda log_probs, prefixes: log_probs)), "a rule may ask anything"
    assert not captured(Greedy(), (no_specials,)), "without a limit nothing says how long to go on"
    assert not captured(Greedy(), model=make("rnn bahdanau"))
    assert not captured(Greedy(), model=make("transformer causal decoder-only"))


def test_what_is_rounded_for_a_gpu_follows_weights_that_have_changed(trained, monkeypatch):
    """A run whose search is in bf16 validates again and again, with one translator."""
    translator = saccade.load(trained)
    monkeypatch.setattr(type(translator), "device", torch.device("cuda"))  # for `search.precision`: nothing goes there
    text = "a dog"
    first = translator.translate(text, precision="bf16")
    rounded = translator._in_bf16
    with torch.no_grad():
        for weight in translator.model.parameters():
            weight.mul_(0.5)
    translator.renew()
    assert translator._in_bf16 is rounded  # whose steps are captured
    fresh = copy.deepcopy(translator.model).to(torch.bfloat16)
    assert all(map(torch.equal, rounded.parameters(), fresh.parameters()))
    assert translator.translate(text, precision="bf16").score != first.score
