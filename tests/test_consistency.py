"""R-Drop, token cutoff, SimCut and word dropout: parity with their equations, alone and together, for every model."""

import copy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from models_under_test import MODELS, make, sentences, settings_of

from saccade.config import TrainingConfig
from saccade.data.batching import Batch, collate
from saccade.data.tokenizers import PAD
from saccade.generation.loop import generate
from saccade.generation.search import Greedy
from saccade.models.build import build_model
from saccade.models.words import CUT, WordTable, allow_cuts
from saccade.training import divergences
from saccade.training.divergences import Pull, projected_divergences
from saccade.training.objectives import Consistency, CrossEntropy, cut_off, drop_words, make_objective, readings_of
from saccade.training.optim import clip_gradients, learning_rate, make_optimizer, set_learning_rate

# One model of each family and way of reading words.
READERS = ["transformer pre-norm", "transformer prefix decoder-only, rotary", "convs2s", "bytenet", "rnn bahdanau"]
READERS += ["rnn luong", "rnn rctm", "rnn gnmt", "rnn lstmn, deep", "lm attention", "classifier"]


def pairs_of(seed: int = 1) -> Batch:
    sides = sentences([4, 9, 2], seed=seed), sentences([6, 2, 5], seed=seed + 1)
    return collate(list(zip(*sides, strict=True)), range(3))


def by_hand(logits: torch.Tensor, gold: torch.Tensor, smoothing: float, shares, pulls) -> torch.Tensor:
    """The loss written with torch's own functions, every logit kept."""
    total = logits.new_zeros(())
    for share, of_one in zip(shares, logits, strict=True):
        total = total + share * F.cross_entropy(of_one, gold, label_smoothing=smoothing, reduction="sum")
    log_p = logits.log_softmax(-1)
    for teacher, student, weight, stopped in pulls:
        of_teacher = log_p[teacher].detach() if stopped else log_p[teacher]
        total = total + weight * F.kl_div(log_p[student], of_teacher, log_target=True, reduction="sum")
    return total


PULLS = [Pull(0, 1, 0.7), Pull(1, 0, 1.3), Pull(0, 2, 3.0, stopped=True), Pull(2, 2, 1.0)]


@settings(max_examples=25, deadline=None)
@given(
    rows=st.integers(1, 23),
    smoothing=st.sampled_from([0.0, 0.1, 0.4]),
    shares=st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=3, max_size=3),
    pulls=st.lists(st.sampled_from(PULLS), max_size=4, unique=True),
    block=st.integers(1, 30),
    seed=st.integers(0, 99),
)
def test_blocked_divergences_equal_the_equations_with_gradients(rows, smoothing, shares, pulls, block, seed):
    torch.manual_seed(seed)
    gold = torch.randint(0, 11, (rows,))
    ours = [torch.randn(3, rows, 5).double().requires_grad_(), torch.randn(11, 5).double().requires_grad_()]
    theirs = [tensor.detach().clone().requires_grad_() for tensor in ours]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(divergences._ProjectedDivergences, "ROWS", block)
        total, nll = projected_divergences(*ours, gold, smoothing, shares, pulls)
    logits = F.linear(*theirs)
    real = gold != PAD  # what is PAD counts nothing
    expected = by_hand(logits[:, real], gold[real], smoothing, shares, pulls)
    torch.testing.assert_close(total, expected)
    torch.testing.assert_close(nll, F.cross_entropy(logits[0][real], gold[real], reduction="sum"))
    (total * 0.37).backward()
    (expected * 0.37).backward()
    for own, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own.grad, torch.zeros_like(own) if other.grad is None else other.grad)


def test_half_precision_is_close_and_keeps_the_sum_in_single():
    torch.manual_seed(0)
    hidden, weight, gold = torch.randn(2, 700, 32), torch.randn(50, 32), torch.randint(1, 50, (700,))
    arguments = (weight, gold, 0.1, [0.5, 0.5], [Pull(0, 1, 1.25), Pull(1, 0, 1.25)])
    total, _ = projected_divergences(hidden.bfloat16(), *arguments)
    exact, _ = projected_divergences(hidden, *arguments)
    assert total.dtype == torch.float32
    assert total.item() == pytest.approx(exact.item(), rel=0.01)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("asked", [{"r_drop": 5.0}, {"simcut": 3.0, "cutoff": 0.0}], ids=["r-drop", "simcut"])
def test_without_dropout_and_cutoff_it_is_plain_cross_entropy(name, asked):
    """The readings are then alike, and nothing draws them apart: loss, NLL and gradients are those of one."""
    batch, plain, doubled = pairs_of(), make(name), make(name)
    expected = CrossEntropy(plain, 0.1)(batch)
    found = make_objective(doubled, TrainingConfig(**asked))(batch)
    assert isinstance(make_objective(doubled, TrainingConfig(**asked)), Consistency)
    torch.testing.assert_close(found.total, expected.total)
    torch.testing.assert_close(found.nll, expected.nll)
    assert found.tokens == expected.tokens
    for loss in (expected, found):
        loss.total.backward()
    for own, other in zip(doubled.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(own.grad, other.grad, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", READERS)
def test_everything_together_is_the_sum_of_its_equations(name):
    """R-Drop, SimCut, token cutoff and word dropout at once, against a batch read three times and every logit kept."""
    asked = TrainingConfig(r_drop=5.0, simcut=3.0, cutoff=0.3, cutoff_weight=0.5, word_dropout=0.2)
    batch, model = pairs_of(), make(name).train()
    objective = make_objective(model, asked)
    assert isinstance(objective, Consistency)
    torch.manual_seed(3)
    found = objective(batch)
    torch.manual_seed(3)  # the same words, and the same dropout, again
    source, inputs = (
        torch.cat([objective._read(tokens, reading) for reading in objective.readings])
        for tokens in (batch.source, batch.inputs)
    )
    assert (source == CUT).any()
    assert (source[:3] != source[6:]).any()
    output = model(source, batch.source_mask.repeat(3, 1), inputs)
    real = batch.gold != 0
    logits = model.logits(output.hidden).view(3, *batch.gold.shape, -1)[:, real]
    pulls = [(0, 1, 1.25, False), (1, 0, 1.25, False), (0, 2, 3.0, False)]
    expected = by_hand(logits, batch.gold[real], 0.1, (0.5, 0.5, 0.5), pulls)
    if output.penalty is not None:
        expected = expected + 0.5 * output.penalty.sum()
    torch.testing.assert_close(found.total, expected)
    weights = list(model.parameters())
    ours, theirs = (torch.autograd.grad(loss, weights, allow_unused=True) for loss in (found.total, expected))
    for own, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", READERS)
def test_padding_never_changes_the_loss_of_words_that_are_cut(name):
    """Which words are cut is fixed here; columns of padding are then all that differs."""
    losses = []
    for shape in (None, (13, 11)):
        model = make(name)
        allow_cuts(model.train())
        for module in model.modules():
            module.p = 0.0  # dropout would differ with the shape
            if hasattr(module, "dropout") and isinstance(module.dropout, float):
                module.dropout = 0.0
        batch = collate(list(zip(sentences([4, 9, 2]), sentences([6, 2, 5], seed=2), strict=True)), range(3), shape)
        source, inputs = batch.source.clone(), batch.inputs.clone()
        source[:, 1], inputs[1, 1] = CUT, CUT
        hidden = model(source, batch.source_mask, inputs).hidden
        losses.append(hidden[batch.gold != 0])
    torch.testing.assert_close(*losses, rtol=1e-6, atol=1e-9)


def test_a_word_that_is_cut_has_a_zero_embedding_and_no_gradient():
    table = WordTable(7, 4)
    allow_cuts(table)
    embedded = table(torch.tensor([[3, CUT, 5]]))
    assert embedded[0, 1].tolist() == [0.0] * 4
    assert torch.equal(embedded[0, [0, 2]], table.weight[[3, 5]])
    embedded.sum().backward()
    assert table.weight.grad.sum(1).nonzero().flatten().tolist() == [3, 5]


@pytest.mark.parametrize("name", MODELS)
def test_every_model_reads_words_that_are_cut(name):
    model = make(name)
    assert [type(m) for m in model.modules() if isinstance(m, torch.nn.Embedding)].count(WordTable) >= 1
    allow_cuts(model.train())
    batch = pairs_of()
    for source, inputs in (
        (torch.full_like(batch.source, CUT), batch.inputs),
        (batch.source, torch.full_like(batch.inputs, CUT)),
    ):
        assert torch.isfinite(model(source, batch.source_mask, inputs).hidden).all()


def test_cutoff_cuts_the_share_it_is_told_to():
    tokens = torch.arange(4, 40_004).view(40, 1000)
    cut = cut_off(tokens, 0.05)
    assert (cut == CUT).double().mean().item() == pytest.approx(0.05, abs=0.005)
    assert torch.equal(cut[cut != CUT], tokens[cut != CUT])


def test_word_dropout_drops_a_word_everywhere_in_a_sentence_and_never_its_ends():
    torch.manual_seed(0)
    tokens = torch.tensor([[1, 7, 8, 7, 9, 7, 2, 0]]).repeat(4000, 1)
    dropped = drop_words(tokens, 0.3)
    assert torch.equal(dropped[:, [0, 6, 7]], tokens[:, [0, 6, 7]])
    assert torch.equal(dropped[:, 1], dropped[:, 3])
    assert torch.equal(dropped[:, 1], dropped[:, 5])
    for column in (1, 2, 4):
        assert (dropped[:, column] == CUT).double().mean().item() == pytest.approx(0.3, abs=0.03)
    both = ((dropped[:, 1] == CUT) & (dropped[:, 2] == CUT)).double().mean().item()
    assert both == pytest.approx(0.09, abs=0.02), "words go one by one"


def test_settings_say_how_often_a_batch_is_read():
    assert isinstance(make_objective(make("rnn cho"), TrainingConfig()), CrossEntropy)
    for asked, count in (({"word_dropout": 0.1}, 1), ({"r_drop": 1.0}, 2), ({"simcut": 1.0}, 2)):
        assert len(readings_of(TrainingConfig(**asked))[0]) == count
    readings, pulls = readings_of(TrainingConfig(r_drop=4.0, simcut=3.0, simcut_one_sided=True))
    assert sum(reading.share for reading in readings) == 1.0, "one loss a token, however often it is read"
    assert pulls == [Pull(0, 1, 1.0), Pull(1, 0, 1.0), Pull(0, 2, 3.0, stopped=True)]
    readings, pulls = readings_of(TrainingConfig(cutoff_weight=0.5))
    assert [reading.share for reading in readings] == [1.0, 0.5]
    assert pulls == []


def test_readings_differ_by_their_dropout_and_r_drop_draws_them_together():
    """A few steps on the divergence alone make two readings of a pair agree more."""
    torch.manual_seed(0)
    model = build_model(settings_of("transformer pre-norm", "model.dropout=0.3"), 20, 20).train()
    batch = pairs_of()
    objective = Consistency(model, 0.0, make_objective(model, TrainingConfig(r_drop=4.0)).readings, [])

    def apart() -> float:
        alone = copy.copy(objective)
        alone.readings = tuple(reading._replace(share=0.0) for reading in objective.readings)
        alone.pulls = (Pull(0, 1, 1.0), Pull(1, 0, 1.0))
        return sum(alone(batch).total.item() for _ in range(20))

    before = apart()
    assert before > 1.0
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    objective.pulls = (Pull(0, 1, 1.0), Pull(1, 0, 1.0))
    for _ in range(30):
        optimizer.zero_grad()
        objective(batch).total.backward()
        optimizer.step()
    assert apart() < before / 2


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("transformer pre-norm", {"r_drop": 2.0, "simcut": 1.0}),
        ("rnn luong, no input feeding", {"r_drop": 2.0, "word_dropout": 0.02}),
        ("convs2s", {"cutoff_weight": 0.5, "simcut": 1.0}),
    ],
)
def test_a_model_still_learns_to_copy(name, asked):
    family = name.split()[0]
    bigger = {"rnn": ["model.embedding=32", "model.width=64"], "convs2s": ["model.embedding=32", "model.width=32"]}
    room = bigger.get(family, ["model.width=32", "model.feed_forward=64"])
    torch.manual_seed(1)
    model = build_model(settings_of(name, *room, "model.dropout=0.05"), 10, 10)
    wanted = TrainingConfig(label_smoothing=0.0, **asked)
    objective, optimizer = make_objective(model, wanted), make_optimizer(model, wanted)
    generator = torch.Generator().manual_seed(1)

    def batch(rows: int) -> Batch:
        source = [torch.randint(4, 10, (3,), generator=generator).tolist() for _ in range(rows)]
        return collate([(s, s) for s in source], range(rows))

    steps = 250
    for step in range(1, steps + 1):
        set_learning_rate(optimizer, learning_rate(step, schedule="cosine", peak=7e-3, warmup=30, total=steps))
        loss = objective(batch(24))
        (loss.total / loss.tokens).backward()
        clip_gradients(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    unseen = batch(60)
    found = generate(model, unseen.source, unseen.source_mask, Greedy(), torch.full((60,), 6))
    gold = [row[: row.index(2)] for row in unseen.gold.tolist()]
    assert sum(f[0].tokens == g for f, g in zip(found, gold, strict=True)) / 60 > 0.9
