"""The sentence classifier against the paper's equations, its penalty, and labels from files to accuracy."""

import json
import random
from pathlib import Path

import pytest
import torch
from conftest import Command
from models_under_test import make, sentences, settings_of
from rich.console import Console

import saccade
from saccade.config import Config, TrainingConfig
from saccade.data.batching import Batch, collate
from saccade.data.builtin import Date, Money, Number, split_of
from saccade.folder import read_record
from saccade.generation.loop import generate
from saccade.generation.search import Greedy
from saccade.models.build import build_model
from saccade.training.objectives import CrossEntropy
from saccade.training.optim import clip_gradients, learning_rate, make_optimizer, set_learning_rate


def lstm(rnn, embedded, suffix):
    """The states of an LSTM of one layer over one sentence, gate by gate."""
    W, U, b, d = (getattr(rnn, f"{name}_l0{suffix}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
    h = c = torch.zeros(rnn.hidden_size, dtype=torch.float64)
    states = []
    for x in embedded:
        i, f, g, o = (W @ x + b + U @ h + d).chunk(4)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        states.append(h)
    return states


def gru(layer, x, s):
    W, U, b, d = layer.weights
    (r, z, n), (hr, hz, hn) = (W @ x + b).chunk(3), (U @ s + d).chunk(3)
    r, z = torch.sigmoid(r + hr), torch.sigmoid(z + hz)
    return (1 - z) * torch.tanh(n + r * hn) + z * s


@torch.no_grad()
def test_matrix_penalty_and_labels_are_the_papers_equations():
    model = make("classifier")
    model.encoder.train()  # where the penalty is; nothing else of it changes, its dropout being off
    model.encoder.encoder.dropout.eval()
    pairs = list(zip(sentences([6, 3]), sentences([2, 4], seed=2), strict=True))
    batch = collate(pairs, [0, 1])
    memory = model.encode(batch.source, batch.source_mask)
    output = model.decode(batch.inputs, model.init_state(memory), need_weights=True)
    logits = model.logits(output.hidden)
    encoder, decoder = model.encoder, model.decoder
    rnn = encoder.encoder.rnn
    for row, mask in enumerate(batch.source_mask):
        n = int(mask.sum())
        embedded = encoder.encoder.embedding.weight[batch.source[row, :n]]
        there, back = lstm(rnn, embedded, ""), lstm(rnn, embedded.flip(0), "_reverse")[::-1]
        H = torch.stack([torch.cat(pair) for pair in zip(there, back, strict=True)])  # n × 2u
        A = torch.softmax(encoder.W_s2 @ torch.tanh(encoder.W_s1.weight @ H.T), dim=1)  # r × n
        M = A @ H  # r × 2u
        P = sum((A[i] @ A[j] - float(i == j)) ** 2 for i in range(3) for j in range(3))
        torch.testing.assert_close(memory.attention[row, :, :n], A)
        assert not memory.attention[row, :, n:].any()
        torch.testing.assert_close(memory.states[row], M)
        assert memory.mask[row].tolist() == [True] * 3
        torch.testing.assert_close(memory.penalty[row], P)
        s = torch.zeros(12, dtype=torch.float64)
        flat = torch.cat(list(M))
        for t, token in enumerate(batch.inputs[row]):
            s = gru(decoder.written, decoder.embedding.weight[token], s)
            hidden = torch.relu(decoder.W_M.weight @ flat + decoder.W_M.bias + decoder.W_s.weight @ s)
            torch.testing.assert_close(output.hidden[row, t], hidden)
            torch.testing.assert_close(logits[row, t], decoder.output.weight @ hidden)
            torch.testing.assert_close(output.attentions[0][row, :, t, :n], A)


def test_the_penalty_is_asked_for_in_training_alone_and_weighs_what_the_setting_says():
    source = torch.tensor([[5, 6, 7, 2], [8, 9, 2, 0]])
    penalties = {}
    for weight in (0.0, 1.0, 2.5):
        torch.manual_seed(1)
        settings = settings_of("classifier", f"model.penalty={weight}", "model.dropout=0")
        model = build_model(settings, 20, 20)
        penalties[weight] = model.encode(source, source != 0).penalty
        assert model.eval().encode(source, source != 0).penalty is None
    assert penalties[0.0] is None
    assert penalties[1.0].shape == (2,)
    torch.testing.assert_close(penalties[2.5], 2.5 * penalties[1.0])
    memory = model.train().encode(source, source != 0)
    turned = memory.select(torch.tensor([1, 0, 1]))
    torch.testing.assert_close(turned.penalty, memory.penalty[[1, 0, 1]])
    torch.testing.assert_close(turned.attention, memory.attention[[1, 0, 1]])


def test_the_penalty_stands_beside_its_own_sentence_whatever_shares_the_batch():
    torch.manual_seed(1)
    model = build_model(settings_of("classifier", "model.dropout=0"), 20, 20).double()
    objective = CrossEntropy(model, 0.1)
    pairs = list(zip(sentences([4, 9, 1]), sentences([1, 3, 1], seed=2), strict=True))
    together = objective(collate(pairs, range(3)))
    alone = [objective(collate([pair], [0])) for pair in pairs]
    torch.testing.assert_close(together.total, torch.stack([loss.total for loss in alone]).sum())
    batch = collate(pairs, range(3))
    penalty = model.encode(batch.source, batch.source_mask).penalty
    model.eval()
    pure = objective(batch)
    torch.testing.assert_close(together.total - pure.total, penalty.sum())
    torch.testing.assert_close(together.nll, pure.nll)


KEYS = range(4, 8)  # of which each sentence holds one, among words that say nothing
LABELS = {
    "one piece": {4: [15], 5: [16], 6: [17], 7: [18]},
    # Told apart only by the order of pieces, and by where they end.
    "several pieces": {4: [15, 16, 15], 5: [16, 15, 16], 6: [15, 15], 7: [15, 16, 15, 15]},
}


def labelled(labels: dict[int, list[int]], rows: int, generator: torch.Generator) -> Batch:
    def draw(low: int, high: int, count: int = 1) -> list[int]:
        return torch.randint(low, high, (count,), generator=generator).tolist()

    pairs = []
    for _ in range(rows):
        words, (key,) = draw(8, 15, 7), draw(KEYS.start, KEYS.stop)
        words[draw(0, 7)[0]] = key
        pairs.append((words, labels[key]))
    return collate(pairs, range(rows))


def learn(kind: str, *more: str, steps: int = 150):
    """A classifier that has read random sentences, and sentences that it has not."""
    torch.manual_seed(1)
    settings = settings_of("classifier", "model.width=16", "model.output_width=32", "model.dropout=0", *more)
    model = build_model(settings, 20, 20)
    objective, optimizer = CrossEntropy(model, 0.0), make_optimizer(model, TrainingConfig())
    generator = torch.Generator().manual_seed(1)
    for step in range(1, steps + 1):
        set_learning_rate(optimizer, learning_rate(step, schedule="cosine", peak=1e-2, warmup=20, total=steps))
        loss = objective(labelled(LABELS[kind], 48, generator))
        (loss.total / loss.tokens).backward()
        clip_gradients(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return model.eval(), labelled(LABELS[kind], 100, generator)


@pytest.mark.parametrize("kind", LABELS)
def test_it_learns_labels_of_one_piece_and_of_several(kind):
    model, unseen = learn(kind)
    found = generate(model, unseen.source, unseen.source_mask, Greedy(), torch.full((100,), 8))
    gold = [row[: row.index(2)] for row in unseen.gold.tolist()]
    assert sum(f[0].tokens == g for f, g in zip(found, gold, strict=True)) > 95


def test_the_penalty_drives_the_hops_apart():
    overlaps = {}
    for weight in (0.0, 1.0):
        model, unseen = learn("one piece", f"model.penalty={weight}", steps=80)
        A = model.encode(unseen.source, unseen.source_mask).attention.detach()
        overlaps[weight] = (A @ A.mT)[:, ~torch.eye(3, dtype=torch.bool)].mean()
    assert overlaps[1.0] < overlaps[0.0]


def test_a_family_has_its_own_defaults_and_what_is_given_wins():
    config = Config.load(None, ["model.family=classifier"])
    assert config.data.cleaning.max_ratio == float("inf")
    assert not config.data.cleaning.drop_copies
    assert config.data.cleaning.drop_duplicates
    assert (config.tokenizer.joint, config.search.length_penalty) == (False, 0.0)
    given = Config.load(None, ["model.family=classifier", "data.cleaning.max_ratio=5", "tokenizer.joint=true"])
    assert (given.data.cleaning.max_ratio, given.tokenizer.joint) == (5.0, True)
    assert not given.data.cleaning.drop_copies
    assert Config.load(None, ["model.family=rnn"]).data == Config().data
    assert Config.of(config.model_dump()) == config


KINDS = {
    "date": lambda draw: Date(draw.randint(1900, 2099), draw.randint(1, 12), draw.randint(1, 28), "full"),
    "sum of money": lambda draw: Money(draw.randint(100, 99_999), draw.choice(["EUR", "USD", "JPY", "SEK"]), "name"),
    "number in words": lambda draw: Number(draw.randint(1, 9_999)),
}


def by_kind(count: int, split: str) -> list[tuple[str, str]]:
    """Sentences of the built-in corpus, of one split, each with what it is."""
    draw, pairs = random.Random(split), []
    while len(pairs) < count:
        kind = draw.choice(list(KINDS))
        if split_of(value := KINDS[kind](draw)) == split:
            pairs.append((value.render(draw.choice(["en", "de", "fr"])), kind))
    return pairs


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of sentences and labels."""
    place = tmp_path_factory.mktemp("kinds")
    odd = [("date", "date"), ("it was on a day that nobody in all the long history of the village remembers", "date")]
    rows = "".join(f"{text}\t{label}\n" for text, label in [*odd, *by_kind(600, "train")])
    (place / "kinds.tsv").write_text(rows, encoding="utf-8")
    for name, side in zip(("text", "labels"), zip(*by_kind(60, "test"), strict=True), strict=True):
        (place / name).write_text("".join(line + "\n" for line in side), encoding="utf-8")
    return place


SETTINGS = [
    "model.family=classifier",
    "training.threads=1",
    "training.device=cpu",
    "training.learning_rate=5e-3",
    "training.validate_every=40",
]


def test_labels_are_learned_written_judged_and_explained(kinds: Path, command: Command) -> None:
    run = kinds / "run"
    done = command("train", kinds / "kinds.tsv", *SETTINGS, "training.max_steps=80", "--out", run)
    assert done.status == 0, done.err
    assert "length ratio" not in done.err, "a label is shorter than its sentence, and that is no flaw"
    assert "copy" not in done.err
    assert "data.cleaning.max_ratio" in done.err
    assert "validation Accuracy" in done.err
    assert "BLEU" not in done.err
    assert [score["metric"] for score in read_record(run)["scores"]] == ["Accuracy"]

    files = "--source", kinds / "text", "--reference", kinds / "labels"
    answer = json.loads(command("evaluate", run, *files, "--json").out)
    (accuracy,) = answer["scores"]
    assert accuracy["metric"] == "Accuracy"
    assert accuracy["value"] >= 95
    assert sum(confusion["times"] for confusion in answer["confusions"]) == round(60 * (1 - accuracy["value"] / 100))

    written = command("translate", run, "--input", kinds / "text")
    labels = written.out.splitlines()
    assert set(labels) == set(KINDS)
    (kinds / "guessed").write_text(written.out)
    judged = command("evaluate", kinds / "guessed", *files, "--metric", "accuracy")
    assert judged.out.splitlines()[0].startswith(f"Accuracy {accuracy['value']:.2f} (nrefs:1|case:mixed|version:")

    translation = saccade.load(run).translate("Friday, March 28, 1986")
    (weights,) = translation.attentions
    assert weights.shape[0] == 4
    assert weights.sum(-1) == pytest.approx(1)
    assert translation.word_attention is not None
    # The paper's heat map: the hops added up, scaled to a sum of 1; what looks at the end of the sentence is not shown.
    summed = weights.sum(0)[0] / weights.sum() * len(weights[0])
    assert translation.word_attention.sum() == pytest.approx(summed[:-1].sum())
    console = Console(width=80, force_terminal=False)
    with console.capture() as drawn:
        console.print(translation.draw())
    assert "date" in drawn.get()
    assert "March" in drawn.get()


def test_a_classifier_goes_on_and_is_tuned_without_losing_its_labels(kinds: Path, command: Command) -> None:
    short, out = kinds / "short", ("--out", kinds / "short")
    for steps in (2, 4):  # the second goes on: what the family chose is what it was
        done = command("train", kinds / "kinds.tsv", *SETTINGS, f"training.max_steps={steps}", *out)
        assert done.status == 0, done.err
    assert read_record(short)["steps"] == 4
    steps = "training.max_steps=2", "training.threads=1"
    tuned = command("train", kinds / "kinds.tsv", *steps, "--from", short, "--out", kinds / "tuned")
    assert tuned.status == 0, tuned.err
    assert "length ratio" not in tuned.err
    assert "copy" not in tuned.err
    assert Config.load(kinds / "tuned" / "config.yaml").model.family == "classifier"
