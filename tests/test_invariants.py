"""What the suite must always be able to say, of every model."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models_under_test import MODELS, make, sentences, settings_of

from saccade.data.batching import collate
from saccade.generation.loop import generate
from saccade.generation.search import Beam, Greedy, Hypothesis, Search
from saccade.models.build import attends

every_model = pytest.mark.parametrize("name", MODELS)


def forced(model, pairs, pad_to=None):
    """Log-probabilities of the whole target, all at once, and where each sentence ends."""
    batch = collate(pairs, range(len(pairs)), pad_to)
    output = model(batch.source, batch.source_mask, batch.inputs)
    return model.logits(output.hidden).log_softmax(-1), batch


@every_model
def test_whether_a_model_attends_follows_from_its_settings(name):
    assert attends(settings_of(name).model) == make(name).attends


@every_model
def test_stepwise_decoding_equals_teacher_forcing(name):
    model = make(name)
    pairs = list(zip(sentences([5, 9, 2]), sentences([7, 3, 6], seed=2), strict=True))
    at_once, batch = forced(model, pairs)
    state = model.init_state(model.encode(batch.source, batch.source_mask), capacity=batch.inputs.size(1))
    for t in range(batch.inputs.size(1)):
        output = model.decode(batch.inputs[:, t : t + 1], state)
        state = output.state
        stepwise = model.logits(output.hidden[:, 0]).log_softmax(-1)
        torch.testing.assert_close(stepwise, at_once[:, t], rtol=0, atol=1e-10)


@every_model
def test_decoding_in_chunks_equals_teacher_forcing(name):
    model = make(name)
    at_once, batch = forced(model, [(sentences([6])[0], sentences([9], seed=2)[0])])
    state = model.init_state(model.encode(batch.source, batch.source_mask), capacity=batch.inputs.size(1))
    parts = []
    for chunk in batch.inputs.split([4, 1, 5], dim=1):
        output = model.decode(chunk, state)
        state = output.state
        parts.append(model.logits(output.hidden).log_softmax(-1))
    torch.testing.assert_close(torch.cat(parts, dim=1), at_once, rtol=0, atol=1e-10)


@every_model
def test_padding_never_changes_the_answer(name):
    model = make(name)
    pairs = list(zip(sentences([4, 7]), sentences([5, 3], seed=2), strict=True))
    tight, batch = forced(model, pairs)
    wide, _ = forced(model, pairs, pad_to=(15, 11))
    real = batch.gold != 0
    torch.testing.assert_close(wide[:, : tight.size(1)][real], tight[real], rtol=0, atol=1e-10)


@every_model
def test_what_stands_in_the_padding_never_matters(name):
    model = make(name)
    pairs = list(zip(sentences([3, 8]), sentences([4, 4], seed=2), strict=True))
    batch = collate(pairs, [0, 1])
    noisy = torch.where(batch.source_mask, batch.source, torch.randint(4, 20, batch.source.shape))
    clean = model(batch.source, batch.source_mask, batch.inputs).hidden
    torch.testing.assert_close(model(noisy, batch.source_mask, batch.inputs).hidden, clean, rtol=0, atol=1e-12)


@every_model
def test_the_future_never_leaks(name):
    model = make(name)
    batch = collate([(sentences([6])[0], sentences([8], seed=2)[0])], [0])
    memory = model.encode(batch.source, batch.source_mask)
    seen = []
    handle = model.decoder.embedding.register_forward_hook(
        lambda *parts: seen.append(parts[-1].retain_grad() or parts[-1])
    )
    hidden = model.decode(batch.inputs, model.init_state(memory)).hidden
    handle.remove()
    for t in range(hidden.size(1)):
        seen[0].grad = None
        hidden[0, t].sum().backward(retain_graph=True)
        reached = seen[0].grad[0].abs().sum(-1) > 0
        assert not reached[t + 1 :].any(), f"position {t} depends on what comes after it"
        assert reached[t], f"position {t} does not even depend on its own input"


def answers(model, sources, search: Search, pad_to: int | None = None) -> list[list[Hypothesis]]:
    batch = collate([(s, []) for s in sources], range(len(sources)), None if pad_to is None else (pad_to, 1))
    limits = torch.tensor([2 * len(s) + 3 for s in sources])
    return generate(model, batch.source, batch.source_mask, search, limits)


def assert_same(found: list[Hypothesis], expected: list[Hypothesis]) -> None:
    assert [h.tokens for h in found] == [h.tokens for h in expected]
    assert [h.log_prob for h in found] == pytest.approx([h.log_prob for h in expected], abs=1e-9)
    assert [h.score for h in found] == pytest.approx([h.score for h in expected], abs=1e-9)


SEARCHES = {"greedy": Greedy(), "beam": Beam(3, 0.8, 0.0, 3)}


@every_model
@pytest.mark.parametrize("kind", SEARCHES)
@settings(max_examples=4, deadline=None)
@given(lengths=st.lists(st.integers(1, 7), min_size=2, max_size=5), seed=st.integers(0, 99), data=st.data())
def test_batch_size_order_and_padding_never_change_the_answer(name, kind, lengths, seed, data):
    model = make(name)
    sources = sentences(lengths, seed=seed)
    alone = [answers(model, [source], SEARCHES[kind])[0] for source in sources]
    order = data.draw(st.permutations(range(len(sources))))
    together = answers(
        model, [sources[i] for i in order], SEARCHES[kind], pad_to=max(lengths) + data.draw(st.integers(1, 4))
    )
    for place, i in enumerate(order):
        assert_same(together[place], alone[i])


@every_model
def test_the_cache_never_changes_the_answer(name):
    """Greedy search with a state carried from step to step, against recomputing the whole prefix every time."""
    model = make(name)
    source = sentences([6], seed=5)[0]
    (found,) = answers(model, [source], Greedy())[0]
    batch = collate([(source, [])], [0])
    prefix = [1]
    while len(prefix) <= 2 * len(source) + 2:
        output = model(batch.source, batch.source_mask, torch.tensor([prefix]))
        logits = model.logits(output.hidden)[0, -1]
        logits[[0, 1, 3]] = -float("inf")
        prefix.append(int(logits.argmax()))
        if prefix[-1] == 2:
            break
    assert found.tokens == [token for token in prefix[1:] if token != 2]


@every_model
def test_beam_1_equals_greedy(name):
    model = make(name)
    sources = sentences([2, 5, 8, 3], seed=9)
    expected = answers(model, sources, Greedy())
    for alpha in (0.0, 1.5):
        for beam, greedy in zip(answers(model, sources, Beam(1, alpha)), expected, strict=True):
            assert beam[0].tokens == greedy[0].tokens
            assert beam[0].log_prob == pytest.approx(greedy[0].log_prob, abs=1e-9)


@every_model
def test_scores_are_the_models_own_log_probabilities(name):
    model = make(name)
    sources = sentences([2, 5, 8, 3], seed=11)
    for source, found in zip(sources, answers(model, sources, Beam(4, 1.0, 0.0, 4)), strict=True):
        for hypothesis in found:
            log_probs, batch = forced(model, [(source, hypothesis.tokens)])
            own = log_probs.gather(-1, batch.gold.unsqueeze(-1)).sum().item()
            assert hypothesis.log_prob == pytest.approx(own, abs=1e-9)


@every_model
def test_output_never_holds_special_tokens(name):
    model = make(name, lively=4.0)
    for found in answers(model, sentences([3, 6, 9], seed=3), Beam(5, 1.0, 0.0, 5)):
        for hypothesis in found:
            assert not {0, 1, 2, 3} & set(hypothesis.tokens)
