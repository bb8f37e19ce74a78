"""Corpora that a model writes: distillation and back-translation."""

import json
import os
from contextlib import contextmanager

import pytest

import saccade
from saccade.config import CleaningConfig
from saccade.data.corpora import open_corpora
from saccade.data.pairs import Pair
from saccade.data.replay import StoredPairs
from saccade.data.tokenizers import Tokenizers
from saccade.display import Display
from saccade.errors import SaccadeError
from saccade.files import alone
from saccade.synthetic import job
from saccade.synthetic.back_translation import back_translate
from saccade.synthetic.distillation import distill, likeness

QUIET = Display(quiet=True)
SHORT = {"beam": 2, "max_length": 8, "guard": False, "protect": []}
LITTLE = ["search.max_length=8", "search.guard=false", "search.protect=[]"]


@pytest.fixture
def corpus(tmp_path, trained):
    """Twenty pairs in two files, one of them blank."""
    store = list(StoredPairs(trained / "resume" / "data" / "train"))[:20]
    store[7] = ("", "")
    for side, name in enumerate(("in.en", "in.de")):
        (tmp_path / name).write_text("".join(f"{pair[side]}\n" for pair in store))
    return [str(tmp_path / "in.en"), str(tmp_path / "in.de")]


class Stopped(Display):
    """A display that interrupts when so many pairs are done."""

    def __init__(self, after):
        super().__init__(quiet=True)
        self.after = after

    @contextmanager
    def task(self, what, total=None):
        def bar(done):
            if done >= self.after:
                raise KeyboardInterrupt

        yield bar


def lines(path):
    return path.read_text().splitlines()


def test_the_student_reads_what_the_teacher_translates(trained, corpus, tmp_path):
    made = distill(trained, corpus, tmp_path / "made", clean=False, display=QUIET, **SHORT)
    sources = lines(tmp_path / "in.en")
    assert made.paths == [tmp_path / "made.en", tmp_path / "made.de"]
    assert lines(tmp_path / "made.en") == sources
    translated = saccade.load(trained).translate(sources, **SHORT)
    assert lines(tmp_path / "made.de") == [translation.text for translation in translated]
    assert (made.read, made.written) == (20, 20)
    assert not list(tmp_path.glob("*.partial")) + list(tmp_path.glob("*.job.json"))


def test_what_is_not_fit_to_learn_from_is_left_out_and_named(trained, corpus, tmp_path, command):
    done = command("distill", trained, *corpus, "search.beam=1", *LITTLE, "--out", tmp_path / "made")
    assert done.status == 0, done.err
    assert "1 both sides blank" in done.err
    assert "distilling:8" in done.err
    assert f"saccade train {tmp_path}/made.en {tmp_path}/made.de" in done.err
    assert "" not in lines(tmp_path / "made.en")


@pytest.mark.parametrize("metric", ["chrf", "bleu"])
def test_interpolation_takes_what_is_most_like_the_reference(trained, corpus, tmp_path, metric):
    made = distill(
        trained, corpus, tmp_path / "made", clean=False, interpolate=metric, display=QUIET, **SHORT | {"beam": 3}
    )
    assert made.written == 20
    like = likeness(metric)
    found = saccade.load(trained).translate(lines(tmp_path / "in.en"), **SHORT | {"beam": 3}, n_best=3)
    changed = 0
    for translation, reference, chosen in zip(
        found, lines(tmp_path / "in.de"), lines(tmp_path / "made.de"), strict=True
    ):
        texts = [one.text for one in translation.n_best] or [translation.text]
        assert chosen in texts
        assert like(chosen, reference) == max(like(text, reference) for text in texts)
        changed += chosen != texts[0]
    assert changed


def test_pairs_whose_translation_is_far_from_the_reference_are_left_out(trained, corpus, tmp_path):
    distill(trained, corpus, tmp_path / "all.jsonl", display=QUIET, **SHORT)
    made = distill(trained, corpus, tmp_path / "near.jsonl", least=20, display=QUIET, **SHORT)
    both = [[json.loads(line) for line in lines(tmp_path / f"{name}.jsonl")] for name in ("all", "near")]
    references = dict(zip(*map(lines, (tmp_path / "in.en", tmp_path / "in.de")), strict=True))
    near = [pair for pair in both[0] if likeness("chrf")(pair["target"], references[pair["source"]]) >= 20]
    assert 0 < len(near) < len(both[0])
    assert both[1] == near
    assert made.unlike + made.report.read == made.read == 20


@pytest.mark.parametrize(("name", "after"), [("made", 1), ("made", 9), ("made.tsv", 17), ("made.jsonl", 8)])
def test_a_job_that_is_stopped_goes_on_to_the_same_bytes(trained, corpus, tmp_path, monkeypatch, name, after):
    monkeypatch.setattr(job, "WINDOW", 6)
    whole = distill(trained, corpus, tmp_path / f"whole-{name}", display=QUIET, **SHORT)
    with pytest.raises(KeyboardInterrupt):
        distill(trained, corpus, tmp_path / name, display=Stopped(after), **SHORT)
    assert not list(tmp_path.glob("made.??")) + list(tmp_path.glob("made.jsonl"))
    for path in tmp_path.glob("made*.partial"):
        with open(path, "a") as file:
            file.write("half a li")
    made = distill(trained, corpus, tmp_path / name, display=QUIET, **SHORT)
    assert [path.read_bytes() for path in made.paths] == [path.read_bytes() for path in whole.paths]
    assert made.report.to_dict() == whole.report.to_dict()


def test_a_kill_between_the_last_window_and_the_files_names_costs_nothing(trained, corpus, tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(job, "put_in_place", lambda paths: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            distill(trained, corpus, tmp_path / "made", display=QUIET, **SHORT)
    (tmp_path / "made.en.partial").rename(tmp_path / "made.en")  # as far as the kill let it come
    made = distill(trained, corpus, tmp_path / "made", display=QUIET, **SHORT)
    assert (made.read, made.written) == (20, len(lines(tmp_path / "made.de")))


def test_a_job_is_not_gone_on_with_under_other_settings(trained, corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(job, "WINDOW", 6)
    with pytest.raises(KeyboardInterrupt):
        distill(trained, corpus, tmp_path / "made", display=Stopped(9), **SHORT)
    with pytest.raises(SaccadeError, match=r"made\.job\.json: the job was begun with least=0\.0, now it is 50"):
        distill(trained, corpus, tmp_path / "made", least=50, display=QUIET, **SHORT)
    (tmp_path / "in.en").write_text((tmp_path / "in.en").read_text() + "more\n")
    with pytest.raises(SaccadeError, match=r"in\.en: does not hold what it held when the job was begun"):
        distill(trained, corpus, tmp_path / "made", display=QUIET, **SHORT)


def test_a_job_goes_on_with_a_corpus_that_was_copied_or_touched(trained, corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(job, "WINDOW", 6)
    with pytest.raises(KeyboardInterrupt):
        distill(trained, corpus, tmp_path / "made", display=Stopped(9), **SHORT)
    os.utime(tmp_path / "in.en", ns=(1, 1))
    assert distill(trained, corpus, tmp_path / "made", display=QUIET, **SHORT).read == 20


def test_files_of_a_pattern_that_are_others_than_before_are_not_gone_on_with(trained, corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(job, "WINDOW", 6)
    for write, what, pattern in ((distill, "corpus", "in*.en"), (back_translate, "text", "in*.de")):
        out = tmp_path / f"{what}.jsonl"
        with pytest.raises(KeyboardInterrupt):
            write(trained, [str(tmp_path / pattern)], out, display=Stopped(9), **SHORT)
        (tmp_path / pattern.replace("*", "0")).write_text("a line that comes first\n")
        with pytest.raises(SaccadeError, match=f"begun with {what}="):
            write(trained, [str(tmp_path / pattern)], out, display=QUIET, **SHORT)


@pytest.mark.parametrize("write", [distill, back_translate])
def test_two_jobs_do_not_write_the_same_files(trained, corpus, tmp_path, write):
    out = tmp_path / "made.jsonl"
    with (
        alone(out, "wait"),
        pytest.raises(SaccadeError, match=r"made\.jsonl: process \d+ is at work there; .* choose another --out"),
    ):
        write(trained, corpus[:1], out, display=QUIET, **SHORT)
    write(trained, corpus[:1], out, display=QUIET, **SHORT)


def test_a_damaged_partial_file_is_named(trained, corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(job, "WINDOW", 6)
    with pytest.raises(KeyboardInterrupt):
        distill(trained, corpus, tmp_path / "made", display=Stopped(9), **SHORT)
    (tmp_path / "made.de.partial").write_text("")
    with pytest.raises(SaccadeError, match=r"made\.de\.partial: is shorter than when it was left"):
        distill(trained, corpus, tmp_path / "made", display=QUIET, **SHORT)


def test_an_ensemble_teaches_too(trained, second, corpus, tmp_path, command):
    done = command("distill", trained, *corpus, "--ensemble", second, *LITTLE, "--out", tmp_path / "both.tsv")
    assert done.status == 0, done.err
    told = {name: value for name, value in SHORT.items() if name != "beam"}
    translated = saccade.load([trained, second]).translate(lines(tmp_path / "in.en"), **told)
    made = dict(line.split("\t") for line in lines(tmp_path / "both.tsv"))
    assert made.items() <= {t.source: t.text for t in translated}.items()


def test_sources_alone_are_enough(trained, corpus, tmp_path):
    distill(trained, corpus, tmp_path / "pairs", display=QUIET, **SHORT)
    distill(trained, corpus[:1], tmp_path / "alone", display=QUIET, **SHORT)
    assert lines(tmp_path / "alone.de") == lines(tmp_path / "pairs.de")
    with pytest.raises(SaccadeError, match=r"sources alone.*give the target file"):
        distill(trained, corpus[:1], tmp_path / "other", interpolate="chrf", display=QUIET)


def test_a_language_model_neither_teaches_nor_translates_back(trained, corpus, tmp_path, tiny):
    few = [setting for setting in tiny if not setting.startswith("model.")]
    small = ("model.family=lm", "model.width=18", "model.embedding=18", "training.max_steps=1")
    saccade.train(corpus[0], *few, *small, "data.valid_pairs=2", out=tmp_path / "lm", quiet=True)
    for write in (distill, back_translate):
        with pytest.raises(SaccadeError, match=r"lm: is a language model, which translates nothing"):
            write(tmp_path / "lm", corpus[:1], tmp_path / "made.jsonl", display=QUIET)


def test_what_was_made_is_trained_on_as_it_is(trained, corpus, tmp_path, tiny):
    made = distill(trained, corpus, tmp_path / "made", display=QUIET, **SHORT)
    few = [setting for setting in tiny if "valid_pairs" not in setting]
    saccade.train(*made.paths, *few, "training.max_steps=1", out=tmp_path / "student", quiet=True)
    assert saccade.load(tmp_path / "student").config.data.source == "en"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["distill", "FOLDER", "in.en", "in.de", "--out", "x.parquet"], "are not written"),
        (["distill", "FOLDER", "in.en", "in.de", "--out", "in"], "is there already"),
        (["distill", "FOLDER", "in.en", "in.de", "--out", "x", "training.max_steps=1"], "only settings of the search"),
        (["distill", "FOLDER", "in.en", "in.de", "--out", "x", "search.bean=1"], "search.bean is not known"),
        (["distill", "FOLDER", "in.en", "in.de", "--out", "x", "--interpolate", "ter"], "use chrf or bleu"),
        (["distill", "FOLDER", "in.en", "none.de", "--out", "x"], "there is no such file"),
        (["backtranslate", "FOLDER", "in.de", "--out", "x", "--method", "mean"], "use beam, sample, top-k"),
        (["backtranslate", "FOLDER", "in.de", "--out", "x", "--top-k", "9"], "is for --method top-k, not beam"),
        (["backtranslate", "FOLDER", "in.de", "--out", "x", "--tag", "a b"], "is not one word"),
        (["backtranslate", "FOLDER", "none.de", "--out", "x"], "there is no such file"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(trained, corpus, tmp_path, command, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    done = command(*(trained if argument == "FOLDER" else argument for argument in arguments))
    assert done.status == 2
    assert said in done.err.replace("\n", " ")
    assert not list(tmp_path.glob("x*"))


def test_a_tab_is_refused_by_tsv_and_kept_by_jsonl(trained, tmp_path):
    (tmp_path / "in.en").write_text("one\ttwo\n")
    with pytest.raises(SaccadeError, match=r"a pair holds a tab.*\.jsonl"):
        distill(trained, [str(tmp_path / "in.en")], tmp_path / "made.tsv", clean=False, display=QUIET, **SHORT)
    distill(trained, [str(tmp_path / "in.en")], tmp_path / "made.jsonl", clean=False, display=QUIET, **SHORT)
    assert json.loads((tmp_path / "made.jsonl").read_text())["source"] == "one\ttwo"


def test_text_gets_tagged_sources_that_a_reverse_model_wrote(trained, corpus, tmp_path):
    # The folder reads English: as a reverse model it writes German sources for English text.
    made = back_translate(trained, corpus[:1], tmp_path / "back", clean=False, display=QUIET, **SHORT)
    assert made.paths == [tmp_path / "back.de", tmp_path / "back.en"]
    assert lines(tmp_path / "back.en") == lines(tmp_path / "in.en")
    written = [t.text for t in saccade.load(trained).translate(lines(tmp_path / "in.en"), **SHORT)]
    assert lines(tmp_path / "back.de") == [f"<BT> {text}" for text in written]


def test_copies_are_seen_in_spite_of_the_tag(tmp_path):
    (tmp_path / "in.en").write_text("copied\nanother\n")

    def make(pairs, progress):
        return [Pair(pair.target.replace("another", "other"), pair.target, pair.line) for pair in pairs]

    made = job.run_job(
        open_corpora([str(tmp_path / "in.en")], monolingual=True),
        make,
        [tmp_path / "out.tsv"],
        tmp_path / "out.tsv",
        {},
        what="copying",
        cleaning=CleaningConfig(drop_duplicates=False),
        prefix="<BT> ",
        display=QUIET,
    )
    assert made.report.reasons["copy"].count == 1
    assert lines(tmp_path / "out.tsv") == ["<BT> other\tanother"]


def test_samples_differ_from_the_beam_and_come_again(trained, corpus, tmp_path, command):
    for name, told in {
        "beam": [],
        "sample": ["--method", "sample"],
        "again": ["--method", "sample"],
        "seed": ["--method", "sample", "search.seed=2"],
        "top": ["--method", "top-k", "--top-k", "1"],
        "greedy": ["search.beam=1"],
    }.items():
        arguments = ["backtranslate", trained, corpus[0], "--out", tmp_path / name, "--untagged", "--no-clean", *told]
        assert command(*arguments, *LITTLE).status == 0
    beam, sample, again, seed, top, greedy = (
        lines(tmp_path / f"{name}.de") for name in ("beam", "sample", "again", "seed", "top", "greedy")
    )
    assert not any("<BT>" in line for line in beam)
    assert sample == again
    assert len({tuple(beam), tuple(sample), tuple(seed)}) == 3
    assert top == greedy


def test_the_tag_is_one_piece_of_a_model_trained_on_both(trained, corpus, tmp_path, tiny):
    made = back_translate(trained, corpus[:1], tmp_path / "back", display=QUIET, **SHORT)
    few = [setting for setting in tiny if "valid_pairs" not in setting]
    told = ["tokenizer.terms=[<BT>]", "training.max_steps=1", "training.subword_dropout=0.5"]
    saccade.train(corpus[1], corpus[0], *made.paths, *few, *told, out=tmp_path / "both", quiet=True)
    tokenizer = Tokenizers.load(tmp_path / "both").source
    tagged = lines(tmp_path / "back.de")[0]
    assert tokenizer.pieces(tokenizer.encode(tagged))[0] == "▁<BT>"
    assert tokenizer.pieces(tokenizer.sample(tagged, 0.9, 1))[0] == "▁<BT>"
