"""Language models against the equations of Daniluk et al. 2017, and trained on text alone."""

import gzip
import math
from collections import Counter
from pydoc_data.topics import topics

import pytest
import torch
from models_under_test import MODELS, make, sentences, settings_of

import saccade
from saccade.attention.masks import before
from saccade.config import CleaningConfig, Config
from saccade.data.batching import collate
from saccade.data.cleaning import CleaningReport, clean
from saccade.data.corpora import Pair, open_corpora
from saccade.errors import SaccadeError
from saccade.models.build import build_model, with_shape
from saccade.planning import choose_sides
from saccade.training.checks import check_together


def gru(weights, x, state):
    W, U, b, d = weights
    i, h = (W @ x + b).chunk(3), (U @ state + d).chunk(3)
    r, z = torch.sigmoid(i[0] + h[0]), torch.sigmoid(i[1] + h[1])
    return (1 - z) * torch.tanh(i[2] + r * h[2]) + z * state


def lstm(weights, x, state):
    W, U, b, d = weights
    h, c = state.chunk(2)
    i, f, g, o = (W @ x + b + U @ h + d).chunk(4)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.cat([torch.sigmoid(o) * torch.tanh(c), c])


def read_as_one_text(model, source, target):
    """Outputs h of the top layer over source and target, word after word through one recurrence."""
    layers = list(model.decoder.stack.layers)
    states = [torch.zeros(layer.state_width, dtype=torch.float64) for layer in layers]
    outputs = []
    tables = [model.encoder.embedding] * len(source) + [model.decoder.embedding] * len(target)
    for table, token in zip(tables, [*source, *target], strict=True):
        x = table.weight[token]
        for i, layer in enumerate(layers):
            states[i] = (gru if layer.unit == "gru" else lstm)(layer.weights, x, states[i])
            x = states[i][: layer.width]
        outputs.append(x)
    return outputs, torch.stack(states)


def attended(look_back, earlier, now, parts, window):
    """h*_t and α_t of equations 1 to 15, from the outputs before t and the one at t."""
    width = now.numel() // parts
    keys = [h[:width] for h in earlier][-window:]
    values = [h[-width:] if parts < 3 else h[width : 2 * width] for h in earlier][-window:]
    W_Y, W_h, w = look_back.score.U.weight, look_back.score.W.weight, look_back.score.v
    e = torch.stack([w @ torch.tanh(W_Y @ k + W_h @ now[:width]) for k in keys])
    alpha = e.softmax(0)
    r = sum(a * v for a, v in zip(alpha, values, strict=True))
    predict = now[-width:]
    return torch.tanh(look_back.W_r.weight @ r + look_back.W_x.weight @ predict), alpha


@pytest.mark.parametrize(
    ("name", "parts", "window"),
    [
        ("lm attention", 1, 99),
        ("lm key-value, windowed", 2, 4),
        ("lm key-value-predict, deep gru", 3, 99),
    ],
)
@torch.no_grad()
def test_looking_back_is_daniluks_equations(name, parts, window):
    model = make(name)
    # A second, longer row puts padding between this source and its target.
    pairs = list(zip(sentences([4, 7]), sentences([6, 2], seed=2), strict=True))
    batch = collate(pairs, [0, 1])
    output = model(batch.source, batch.source_mask, batch.inputs, need_weights=True)
    S = int(batch.source_mask[0].sum())
    source, target = batch.source[0, :S], batch.inputs[0]
    h, final = read_as_one_text(model, source, target)
    for t in range(len(target)):
        hidden, alpha = attended(model.decoder.look_back, h[: S + t], h[S + t], parts, window)
        torch.testing.assert_close(output.hidden[0, t], hidden)
        whole = torch.zeros(S + t, dtype=torch.float64)
        whole[S + t - len(alpha) :] = alpha
        torch.testing.assert_close(output.attentions[0][0, 0, t, :S], whole[:S])
        assert not output.attentions[0][0, 0, t, S:].any()
    torch.testing.assert_close(output.state.recurrent[0], final)


@torch.no_grad()
def test_the_ngram_rnn_is_daniluks_section_2_4():
    model = make("lm ngram")
    batch = collate([(sentences([1])[0], sentences([6], seed=2)[0])], [0])  # fewer words before than N - 2 = 3
    output = model(batch.source, batch.source_mask, batch.inputs)
    h, _ = read_as_one_text(model, batch.source[0], batch.inputs[0])
    S, part = batch.source.size(1), 3
    for t in range(batch.inputs.size(1)):
        gram = [
            h[S + t - i][i * part : (i + 1) * part] if S + t - i >= 0 else torch.zeros(part, dtype=torch.float64)
            for i in range(4)
        ]
        hidden = torch.tanh(model.decoder.look_back.W_N.weight @ torch.cat(gram))
        torch.testing.assert_close(output.hidden[0, t], hidden)
    assert output.attentions is None
    assert not model.attends


def test_source_and_target_are_read_by_the_same_layers():
    model = make("lm attention")
    assert model.encoder.stack is model.decoder.stack
    assert model.encoder.embedding is model.decoder.embedding
    names = [name for name, _ in model.named_parameters()]
    assert not [name for name in names if name.startswith("decoder.stack")]


def test_a_window_reaches_just_as_many_words_back_whatever_is_padded():
    places = torch.tensor([[0, 1, 2, 3]])
    assert before(places, places)[0, 0].tolist() == torch.ones(4, 4).tril(-1).bool().tolist()
    assert before(places[:, 3:], places, 2)[0, 0].tolist() == [[False, True, True, False]]


@torch.no_grad()
def test_a_window_as_long_as_the_text_is_no_window():
    name = "lm key-value, windowed"
    batch = collate([(sentences([4])[0], sentences([6], seed=2)[0])], [0])
    hidden = {}
    for window in (4, 12, None):
        model = make(name)
        model.decoder.look_back.window = window
        hidden[window] = model(batch.source, batch.source_mask, batch.inputs).hidden
    torch.testing.assert_close(hidden[12], hidden[None], rtol=0, atol=0)
    assert not torch.allclose(hidden[4], hidden[None])


def test_a_width_that_cannot_be_cut_is_refused_with_one_that_can():
    with pytest.raises(SaccadeError, match=r"model\.width=13: .*key-value-predict cuts it into 3 parts; use 15"):
        build_model(settings_of("lm key-value-predict, deep gru", "model.width=13"), 20, 20)


@pytest.mark.parametrize("size", ["tiny", "small", "medium", "base", "big"])
@pytest.mark.parametrize("name", [name for name in MODELS if name.startswith("lm")])
def test_every_named_size_can_be_cut(name, size):
    open_ended = settings_of(name).model.model_copy(update={"size": size, "width": None, "embedding": None})
    config = settings_of(name)
    with torch.device("meta"):
        build_model(config.model_copy(update={"model": with_shape(open_ended, joint=True)}), 300, 300)


SMALL = [
    "model.family=lm",
    "model.embedding=48",
    "model.width=96",
    "model.dropout=0",
    "training.threads=1",
    "training.device=cpu",
    "training.tensorboard=false",
]


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    """train.en and valid.en: sentences of a real English text, Python's own reference as `help()` shows it."""
    text = " ".join(" ".join(topics[name] for name in sorted(topics)).split())
    found = list(dict.fromkeys(f"{s.strip()}." for s in text.split(". ") if 20 < len(s) < 120))[:1200]
    assert len(found) == 1200
    place = tmp_path_factory.mktemp("text")
    (place / "train.en").write_text("".join(line + "\n" for line in found[100:]))
    (place / "valid.en").write_text("".join(line + "\n" for line in found[:100]))
    return place


@pytest.fixture(scope="module")
def trained_lm(lines, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lm") / "lm"
    saccade.train(
        str(lines / "train.en"),
        *SMALL,
        "tokenizer.vocabulary=600",
        "training.batch_tokens=1024",
        "training.max_steps=300",
        "training.validate_every=100",
        "training.learning_rate=0.005",
        out=folder,
        quiet=True,
    )
    return folder


def scores_of(text: str) -> list[float]:
    """The numbers of `saccade evaluate` on a language model: perplexity a token, a word, bits a character."""
    found = [line.split(" (")[0] for line in text.splitlines()]
    assert [line.rpartition(" ")[0] for line in found] == [
        "perplexity a token",
        "perplexity a word",
        "bits a character",
    ]
    return [float(line.rpartition(" ")[2]) for line in found]


def test_a_text_is_learned_better_than_any_unigram_model_could(trained_lm, lines, command):
    """… even by one that has counted the very text that it is tried on."""
    done = command("evaluate", trained_lm, "--reference", lines / "valid.en", "--device", "cpu")
    assert done.status == 0, done.err
    valid = (lines / "valid.en").read_text().splitlines()
    tokenizer = saccade.load(trained_lm).tokenizers.target
    counts = Counter(token for line in valid for token in [*tokenizer.encode(line), -1])
    total = counts.total()
    unigram = math.exp(-sum(n * math.log(n / total) for n in counts.values()) / total)
    assert scores_of(done.out)[0] < 0.8 * unigram


def test_the_three_numbers_are_one_probability_counted_thrice(trained_lm, lines, command):
    valid = (lines / "valid.en").read_text().splitlines()
    per_token, per_word, bits = scores_of(command("evaluate", trained_lm, "--reference", lines / "valid.en").out)
    done = command("score", trained_lm, "--target", lines / "valid.en")
    assert done.status == 0, done.err
    nats = -sum(map(float, done.out.split()))
    tokenizer = saccade.load(trained_lm).tokenizers.target
    assert per_token == pytest.approx(math.exp(nats / sum(len(tokenizer.encode(v)) + 1 for v in valid)), abs=0.006)
    assert per_word == pytest.approx(math.exp(nats / sum(len(v.split()) + 1 for v in valid)), abs=0.006)
    assert bits == pytest.approx(nats / math.log(2) / sum(len(v) + 1 for v in valid), abs=0.006)


def test_the_folder_says_what_it_is(trained_lm, command):
    config = Config.load(trained_lm / "config.yaml")
    assert config.data.monolingual is True
    assert config.training.validate_bleu_pairs == 0
    assert (config.data.target, config.tokenizer.joint) == ("en", True)
    card = (trained_lm / "README.md").read_text()
    assert card.startswith("# en\n")
    assert "A language model" in card
    assert "perplexity a token" in card
    assert "BLEU" not in card
    assert "bits a character" in command("info", trained_lm).out
    assert command("translate", trained_lm, stdin=b"\n\n").out == "\n\n"


def test_any_folder_can_say_how_well_it_foretells_its_pairs(trained, tmp_path, command):
    source, target = tmp_path / "a.en", tmp_path / "a.de"
    source.write_text("January 5, 2021\nnine\n")
    target.write_text("5. Januar 2021\nneun\n")
    done = command("evaluate", trained, "--source", source, "--reference", target, "--perplexity")
    assert done.status == 0, done.err
    total = sum(saccade.load(trained).score(source.read_text().splitlines(), target.read_text().splitlines()))
    assert scores_of(done.out)[2] == pytest.approx(-total / math.log(2) / (14 + 4 + 2), abs=0.006)


def test_where_there_were_sources_they_are_asked_for(trained, lines, command):
    for words in (["evaluate", trained, "--reference"], ["score", trained, "--target"]):
        done = command(*words, lines / "valid.en")
        assert done.status == 2
        assert "was trained on pairs" in done.err
        assert "--source" in done.err


def test_perplexity_of_what_cannot_have_one_is_refused(trained_lm, lines, command):
    text = lines / "valid.en"
    for words, said in (
        ([trained_lm, "--reference", text, "--reference", text], "one --reference"),
        ([trained_lm, "--reference", text, "--against", trained_lm], "leave out --against"),
        ([text, "--reference", text], "a file foretells nothing"),
    ):
        done = command("evaluate", *words)
        assert done.status == 2
        assert said in " ".join(done.err.split())


def test_a_language_model_goes_on_with_more_text(trained_lm, lines, tmp_path, command):
    packed = tmp_path / "more.txt.gz"
    packed.write_bytes(gzip.compress((lines / "valid.en").read_bytes()))
    done = command(
        *("train", packed, "--from", trained_lm, "--out", tmp_path / "tuned"),
        *("training.max_steps=2", "training.threads=1", "training.device=cpu"),
    )
    assert done.status == 0, done.err
    assert Config.load(tmp_path / "tuned" / "config.yaml").data.monolingual is True


@pytest.mark.parametrize("name", ["pairs.tsv", "pairs.jsonl.gz"])
def test_a_file_of_pairs_is_no_text_for_a_language_model(tmp_path, name):
    config = Config.load(None, ["model.family=lm", f"data.train=[{tmp_path / name}]"])
    assert choose_sides(config, config.model).data.monolingual is False
    with pytest.raises(SaccadeError, match=r"data\.monolingual=true reads text files"):
        open_corpora([str(tmp_path / name)], monolingual=True)


def test_a_language_model_learns_pairs_too():
    config = Config.load(None, ["model.family=lm", "data.train=[a.de, a.en]"])
    assert choose_sides(config, config.model).data.monolingual is False


def test_one_text_file_without_a_language_model_is_refused_with_the_way_out(tmp_path, command):
    (tmp_path / "text.txt").write_text("one\ntwo\n")
    done = command("train", tmp_path / "text.txt", "--out", tmp_path / "out")
    assert done.status == 2
    assert "model.family=lm" in done.err


def test_several_texts_and_standard_input_are_read_where_it_is_said(tmp_path):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(f"{name} one\n{name} two\n")
    corpora = open_corpora([str(tmp_path / "a.txt"), str(tmp_path / "b.txt")], monolingual=True)
    assert [tuple(pair) for corpus in corpora for pair in corpus] == [
        ("", "a.txt one", 1),
        ("", "a.txt two", 2),
        ("", "b.txt one", 1),
        ("", "b.txt two", 2),
    ]
    assert open_corpora(["-"], monolingual=True)[0].name == "standard input"


def test_cleaning_a_text_judges_its_one_side():
    text = ["a line that is long enough for a ratio to be taken of it", "  ", "bad\ufffd", "same", "same", "x" * 3000]
    pairs = [Pair("", line, number) for number, line in enumerate(text, 1)]
    report = CleaningReport()
    kept = [pair.line for pair in clean(Listed(pairs), CleaningConfig(), report, monolingual=True)]
    assert kept == [1, 4]
    assert {reason: dropped.count for reason, dropped in report.reasons.items()} == {
        "target blank": 1,
        "replacement character": 1,
        "duplicate": 1,
        "too long": 1,
    }
    assert [pair.line for pair in clean(Listed(pairs), CleaningConfig(), CleaningReport())] == []


class Listed(list):
    name = "listed"


@pytest.mark.parametrize(
    ("setting", "said"),
    [("training.validate_by=bleu", "use loss"), ("tokenizer.joint=false", "leave it out")],
)
def test_what_needs_two_sides_is_refused_for_one(setting, said):
    with pytest.raises(SaccadeError, match=said):
        check_together(Config.load(None, ["model.family=lm", "data.monolingual=true", setting]))
