"""Links between words, out of attention."""

import json
import shutil

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models_under_test import settings_of

import saccade
from saccade.alignment import align as align_module
from saccade.alignment.align import Aligner, AttentionReader, Held, attention_readers, reader_for
from saccade.alignment.choice import Candidates, Choice, Reading, choose, parse_heads
from saccade.alignment.looks import forced, in_batches, read_at
from saccade.alignment.model1 import likely_links
from saccade.alignment.train_head import Text, train_head
from saccade.alignment.words import WordNumbers, membership, to_words
from saccade.config import TrainingConfig
from saccade.data.batching import collate
from saccade.data.tokenizers import Tokenizer, Tokenizers
from saccade.display import Display
from saccade.errors import SaccadeError
from saccade.looking import merge_to_words
from saccade.models.build import build_model
from saccade.training.objectives import CrossEntropy
from saccade.training.optim import clip_gradients, learning_rate, make_optimizer, set_learning_rate
from saccade.translator import Translator

QUIET = Display(quiet=True)
LETTERS = "abcdefghij"
BPE = Tokenizer.train(
    ["the black cat, it sat", "ein schwarzer Kater saß da", "Schwarze Katzen – überall"] * 3, "bpe", 300
)


@pytest.fixture(scope="module")
def reverser() -> Translator:
    """A model that has learned to write words in the opposite order."""
    tokenizer = Tokenizer.train([" ".join(LETTERS)] * 2, "words", 400)
    one = ("encoder_layers=1", "decoder_layers=1", "heads=1", "width=32", "feed_forward=64", "dropout=0")
    config = settings_of("transformer pre-norm", *(f"model.{setting}" for setting in one))
    torch.manual_seed(1)
    model = build_model(config, tokenizer.size, tokenizer.size)
    optimizer, objective = make_optimizer(model, TrainingConfig()), CrossEntropy(model, 0.0)
    generator = torch.Generator().manual_seed(1)
    words = tokenizer.encode(" ".join(LETTERS))
    for step in range(1, 401):
        set_learning_rate(optimizer, learning_rate(step, schedule="cosine", peak=1e-2, warmup=30, total=400))
        orders = [torch.randperm(len(words), generator=generator)[: 2 + step % 5].tolist() for _ in range(48)]
        rows = [[words[i] for i in order] for order in orders]
        loss = objective(collate([(row, row[::-1]) for row in rows], range(48)))
        (loss.total / loss.tokens).backward()
        clip_gradients(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return Translator(config, Tokenizers(tokenizer, tokenizer), model.eval())


def reversals(count: int, seed: int = 1) -> tuple[list[str], list[str]]:
    random = np.random.default_rng(seed)
    rows = [random.permutation(list(LETTERS))[: random.integers(2, 7)].tolist() for _ in range(count)]
    return [" ".join(row) for row in rows], [" ".join(row[::-1]) for row in rows]


def anti_diagonal(text: str) -> list[tuple[int, int]]:
    n = len(text.split())
    return [(s, n - 1 - s) for s in range(n)]


def right(found, sources) -> float:
    hits = [link in anti_diagonal(source) for each, source in zip(found, sources, strict=True) for link in each.links]
    return float(np.mean(hits))


def test_a_model_that_reverses_aligns_to_the_anti_diagonal(reverser):
    sources, targets = reversals(150)
    forward, none = attention_readers(reverser, None, Held(sources, targets), QUIET)
    assert none is None
    unseen = reversals(100, seed=2)
    found = Aligner(forward).align(*unseen)
    assert right(found, unseen[0]) > 0.97
    assert all(0 < p <= 1 for each in found for p in each.probabilities)
    worst = min(
        right(Aligner(AttentionReader(reverser, Choice((reading,)))).align(*unseen), unseen[0])
        for reading in Candidates(reverser, *unseen, QUIET).readings
    )
    assert worst < 0.5  # there are heads that do not align: the choice mattered


def test_two_directions_each_choose_their_own_heads_and_agree(reverser):
    text = Held(*reversals(150))
    readers = attention_readers(reverser, reverser, text, QUIET)
    assert all(reader.choice.judge == "Model 1" for reader in readers)
    unseen = reversals(60, seed=3)
    assert right(Aligner(*readers, "intersection").align(*unseen), unseen[0]) > 0.97


def test_alignments_do_not_depend_on_what_else_is_aligned(reverser, monkeypatch):
    sources, targets = reversals(40)
    reader = AttentionReader(reverser, choose(Candidates(reverser, sources, targets, QUIET)))
    together = Aligner(reader, reader).align(sources, targets)
    alone = [Aligner(reader, reader).align([s], [t])[0] for s, t in zip(sources, targets, strict=True)]
    assert [each.links for each in together] == [each.links for each in alone]
    monkeypatch.setattr(align_module, "AT_ONCE", 100)
    assert [each.links for each in Aligner(reader, reader).align(sources, targets)] == [each.links for each in alone]
    streamed = Aligner(reader, reader).stream(zip(sources, targets, strict=True), 7)
    assert [each.links for each in streamed] == [each.links for each in alone]


def test_one_reader_read_both_ways_says_what_rows_and_columns_agree_on(reverser):
    class Fixed(AttentionReader):
        def read(self, sources, targets, first=1):
            return [np.array([[0.6, 0.4, 0.0], [0.5, 0.1, 0.4]], np.float32)]

    reader = Fixed(reverser, Choice((Reading(0, 0, False),)))
    text = ["a b c"], ["x y"]
    assert Aligner(reader).align(*text)[0].links == [(0, 0), (0, 1)]
    assert Aligner(reader, method="intersection", both_ways=True).align(*text)[0].links == [(0, 0)]
    assert Aligner(reader, method="union", both_ways=True).align(*text)[0].links == [(0, 0), (0, 1), (1, 0), (2, 1)]


def test_a_blank_side_has_no_links(reverser):
    reader = AttentionReader(reverser, Choice((Reading(0, 0, False),)))
    found = Aligner(reader).align(["a b", "", "  ", "c"], ["b a", "a", "b", ""])
    assert [len(each.links) for each in found] == [2, 0, 0, 0]


def test_a_reading_one_step_later_is_the_row_of_the_step_that_has_the_word_as_input(reverser):
    (pairs,) = in_batches(reverser, ["a b c"], ["c b a"])
    weights = forced(reverser.model, pairs.batch).weights
    assert weights.shape[2] == 4  # three words and the end
    for t in range(3):
        assert torch.equal(read_at(weights, False)[:, :, t], weights[:, :, t])
        assert torch.equal(read_at(weights, True)[:, :, t], weights[:, :, t + 1])


@given(
    st.lists(st.sampled_from(["cat", "schwarzer", "ü", ",", "–", "x1", "日本"]), max_size=6).map(" ".join) | st.text()
)
@settings(max_examples=80, deadline=None)
def test_words_are_those_of_the_tokenizer_and_of_split(text):
    ids = BPE.encode(text)
    found = WordNumbers(BPE)(text, ids)
    if not text.split():
        assert len(found) == 0
        return
    assert found.tolist() == BPE.words(ids)
    assert max(found) + 1 == len(text.split()) or "\ufffd" in BPE.decode(ids)


def test_pieces_are_merged_as_for_one_sentence():
    random = np.random.default_rng(1)
    target, source = np.array([0, 0, 1, 2]), np.array([0, 1, 1])
    weights = random.random((2, 5, 4, 3)).astype(np.float32)
    members = [membership([numbers, numbers[:2]], n, torch.device("cpu")) for numbers, n in ((target, 4), (source, 3))]
    found = to_words(torch.from_numpy(weights), *members)
    for head in range(5):
        np.testing.assert_allclose(found[0, head], merge_to_words(weights[0, head], target, source), rtol=1e-5)


def test_model_1_learns_which_words_go_together():
    """Only `b` is always there when `Y` is; `c` and `Z` come twice, once with each other alone."""
    sources = ["a b", "b c", "c", "a b c", "b"]
    targets = ["X Y", "Z Y", "Z", "Y Z X", "Y"]
    found = likely_links(sources, targets)
    wanted = [[0, 1], [1, 0], [0], [1, 2, 0], [0]]
    assert [matrix.argmax(1).tolist() for matrix in found] == wanted
    for matrix in found:
        np.testing.assert_allclose(matrix.sum(1), 1.0, rtol=1e-5)


def test_heads_are_named_from_one(reverser):
    assert parse_heads("1.1", True, reverser).readings == (Reading(0, 0, True),)
    assert parse_heads("1", False, reverser).readings == (Reading(0, 0, False),)
    with pytest.raises(SaccadeError, match=r"the model has no 1.2; its heads run from 1.1 to 1.1"):
        parse_heads("1.1, 1.2", True, reverser)
    with pytest.raises(SaccadeError, match="'x' is no head; write"):
        parse_heads("x", True, reverser)


def test_a_choice_is_kept(tmp_path):
    choice = Choice((Reading(0, 1, True), Reading(2, 0, False)), "Model 1", 0.5)
    assert Choice.load(tmp_path) is None
    choice.save(tmp_path)
    assert Choice.load(tmp_path) == choice
    assert str(choice) == "reads heads (layer.head) 3.1 at the own step; 1.2 one step later (Model 1 0.500)"


def test_a_trained_head_learns_the_links_and_the_gaps_it_is_given(reverser, tmp_path):
    """Links of the anti-diagonal, but the word `a` has none: a head that only looked could not leave it out."""
    sources, targets = reversals(400)
    links = [frozenset(link for link in anti_diagonal(s) if s.split()[link[0]] != "a") for s in sources]
    trained = train_head(reverser, Text(sources, targets, links), epochs=12, rate=3e-3)
    assert trained.agreement > 0.95
    unseen = reversals(60, seed=9)
    trained.reader.save(tmp_path, {"pairs": 400})
    loaded = reader_for(reverser, tmp_path, "auto")
    found = Aligner(loaded).align(*unseen)
    assert [each.links for each in found] == [each.links for each in Aligner(trained.reader).align(*unseen)]
    wanted = [frozenset(link for link in anti_diagonal(s) if s.split()[link[0]] != "a") for s in unseen[0]]
    same = sum(len(w & set(f.links)) for w, f in zip(wanted, found, strict=True))
    assert 2 * same / (sum(map(len, wanted)) + sum(len(f.links) for f in found)) > 0.95


def test_links_beyond_the_words_are_refused_by_line(reverser):
    with pytest.raises(SaccadeError, match=r"line 2: link 5-0, but the pair has 1 and 1 words"):
        train_head(reverser, Text(["a", "b"], ["a", "b"], [frozenset(), frozenset({(5, 0)})]))


@pytest.fixture
def text(tmp_path):
    sources = ["January 5, 2021", "Friday, August 9, 1985", "", "11 May 1999"]
    targets = ["5. Januar 2021", "Freitag, 9. August 1985", "", "11. Mai 1999"]
    for name, lines in (("s", sources), ("t", targets)):
        (tmp_path / name).write_text("".join(line + "\n" for line in lines))
    return tmp_path / "s", tmp_path / "t"


def test_the_command_prints_a_line_a_pair(trained, command, text):
    done = command("align", trained, *text, "--device", "cpu")
    assert done.status == 0, done.err
    lines = done.out.splitlines()
    assert len(lines) == 4
    assert lines[2] == ""
    # Every word of the target has one source word.
    assert sorted(int(link.split("-")[1]) for link in lines[1].split()) == [0, 1, 2, 3]
    assert "reads heads" in done.err


def test_the_command_gives_probabilities_and_two_directions(trained, command, text):
    done = command("align", trained, *text, "--reverse", trained, "--json", "--symmetrise", "union", "--device", "cpu")
    assert done.status == 0, done.err
    rows = [json.loads(line) for line in done.out.splitlines()]
    assert rows[0]["source"] == ["January", "5,", "2021"]
    assert all(0 <= p <= 1 for row in rows for _, _, p in row["links"])
    fewer = command("align", trained, *text, "--reverse", trained, "--symmetrise", "intersection", "--device", "cpu")
    both = [{tuple(map(int, link.split("-"))) for link in line.split()} for line in fewer.out.splitlines()]
    assert all(some <= {(s, t) for s, t, _ in row["links"]} for some, row in zip(both, rows, strict=True))


def test_a_folder_keeps_its_choice_and_its_head_and_is_judged_by_gold(trained, command, text, tmp_path):
    folder = tmp_path / "folder"
    shutil.copytree(trained, folder, ignore=shutil.ignore_patterns("resume"))
    kept = command("align", folder, *text, "--keep", "--device", "cpu")
    assert (folder / "alignment.json").exists()
    again = command("align", folder, *text, "--device", "cpu")
    assert again.out == kept.out
    assert "reads heads" not in again.err
    (tmp_path / "links").write_text(kept.out)
    done = command("train-aligner", folder, *text, "--links", tmp_path / "links", "--device", "cpu")
    assert done.status == 0, done.err
    assert "an alignment head" in done.out
    by_head = command("align", folder, *text, "--by", "head", "--device", "cpu")
    assert by_head.status == 0, by_head.err
    data = ("--source", text[0], "--reference", text[1], "--device", "cpu")
    perfect = command("evaluate", tmp_path / "links", "--gold", tmp_path / "links")
    assert perfect.out.splitlines() == ["alignment error rate 0.0%", "precision 100.0%", "recall 100.0%"]
    (tmp_path / "gold").write_text("0-1 1-0 2-2\n\n\n1?1\n")
    scored = command("evaluate", folder, "--gold", tmp_path / "gold", *data, "--json")
    assert set(json.loads(scored.out)) == {"error_rate", "precision", "recall"}
    (tmp_path / "gold").write_text("0-1 1-0 2-99\n\n\n\n")
    other = command("evaluate", folder, "--gold", tmp_path / "gold", *data)
    assert "gold, line 1: 2-99 links words that are not there" in other.err


def test_what_is_wrong_is_said(trained, second, command, text, tmp_path):
    assert "has no alignment head; train one with" in command("align", trained, *text, "--by", "head").err
    assert "--by=x: is not known" in command("align", trained, *text, "--by", "x").err
    assert "--symmetrise=x" in command("align", trained, *text, "--symmetrise", "x").err
    (tmp_path / "short").write_text("one\n")
    assert "ends before" in command("align", trained, text[0], tmp_path / "short", "--heads", "1").err
    assert "give --source and --reference" in command("evaluate", trained, "--gold", text[0]).err
    assert "nothing to compare with" in command("evaluate", trained, "--source", text[0]).err
    assert "standard input can be read only once" in command("align", trained, "-", text[1]).err
    assert command("align", second, *text).status == 0  # a recurrent model has one head, which is read


def test_a_model_without_attention_aligns_nothing(tmp_path):
    config = settings_of("rnn cho")
    model = build_model(config, BPE.size, BPE.size).eval()
    with pytest.raises(SaccadeError, match="no attention over the source"):
        attention_readers(Translator(config, Tokenizers(BPE, BPE), model), None, Held(["cat"], ["Kater"]), QUIET)


def test_an_alignment_of_the_demo_is_read_from_python(trained):
    translator = saccade.load(trained, engine="torch")
    reader = AttentionReader(translator, parse_heads("1", False, translator))
    (found,) = Aligner(reader).align(["January 5, 2021"], ["5. Januar 2021"])
    forced_alignment = translator.forced("January 5, 2021", "5. Januar 2021").alignment
    assert sorted(found.links) == sorted(forced_alignment)  # one layer: the mean of its heads is what `alignment` reads
