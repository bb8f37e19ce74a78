"""What is refused before a run starts, and what is never destroyed."""

import shutil
import sys

import pytest
import torch

import saccade
from saccade.api import settings_from, train
from saccade.data.store import Store, StoreWriter
from saccade.errors import SaccadeError
from saccade.generation.rules import Prefixes, forbid
from saccade.training.checks import check_lengths, check_together, tuned_from


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["search.n_best=9"], r"search\.n_best=9 is more than search\.beam=5"),
        (["search.coverage_penalty=0.2", "model.family=rnn", "model.wiring=cho"], "needs a model with attention"),
        (["search.coverage_penalty=0.2", "model.family=conv", "model.wiring=bytenet"], "needs a model with attention"),
        (["training.validate_by=bleu", "training.validate_bleu_pairs=0"], "validate_bleu_pairs above 0"),
        (["training.subword_dropout=0.1", "tokenizer.kind=bytes"], "needs tokenizer.kind=bpe"),
        (["model.family=rnn", "model.reverse_source=true"], r"model\.reverse_source=false"),
    ],
)
def test_settings_that_would_fail_after_training_are_refused_before(settings, message):
    with pytest.raises(SaccadeError, match=message):
        check_together(settings_from(settings))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["model.family=rnn", "model.wiring=cho", "model.score=dot"], r"model\.score=dot: .*cho has no attention"),
        (["model.family=rnn", "model.wiring=rctm", "model.window=local-m"], r"model\.window=local-m: .*rctm has no"),
        (["model.family=lm", "model.wiring=ngram", "model.window=3"], r"model\.window=3: .* as far as model\.order"),
        (["model.positions=rotary", "model.merge_positions=concatenate"], r"concatenate: .*rotary has no vectors"),
    ],
)
def test_settings_that_would_say_nothing_are_refused(settings, message):
    with pytest.raises(SaccadeError, match=message + ".*; leave it out"):
        check_together(settings_from(settings))


def test_a_folder_with_other_files_is_left_alone(tmp_path, tiny):
    (tmp_path / "README.md").write_text("mine")
    with pytest.raises(SaccadeError, match="holds files that are not Saccade's"):
        train(*tiny, out=tmp_path, quiet=True)
    assert [p.name for p in tmp_path.iterdir()] == ["README.md"]


def test_a_trained_model_without_checkpoints_is_never_trained_over(tmp_path, trained, tiny):
    shutil.copytree(trained, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "resume")
    before = (tmp_path / "run" / "model.safetensors").read_bytes()
    with pytest.raises(SaccadeError, match=r"no checkpoint to go on from.*--from"):
        train(*tiny, "training.max_steps=99", out=tmp_path / "run", quiet=True)
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["typo.de", "typo.en"], "no such file"),
        (["model.key_heads=7"], "does not divide"),
        (["training.device=cuda:99"], "cannot be used"),
        (["data.source=xx"], "xx"),
    ],
)
def test_restart_throws_nothing_away_before_all_is_checked(tmp_path, trained, tiny, arguments, message):
    shutil.copytree(trained, tmp_path / "run")
    with pytest.raises(SaccadeError, match=message):
        train(*tiny, *arguments, out=tmp_path / "run", restart=True, quiet=True)
    assert saccade.load(tmp_path / "run").translate("seventeen").text is not None


def test_a_run_cannot_throw_away_what_it_starts_from(tmp_path, trained, tiny):
    shutil.copytree(trained, tmp_path / "run")
    with pytest.raises(SaccadeError, match="what it starts from"):
        train(*tiny, out=tmp_path / "run", start_from=tmp_path / "run", restart=True, quiet=True)
    assert (tmp_path / "run" / "model.safetensors").exists()


def test_a_run_cannot_throw_away_the_corpus_that_it_is_to_read(tmp_path, trained, tiny):
    shutil.copytree(trained, tmp_path / "run")
    corpus = tmp_path / "run" / "pairs.tsv"
    corpus.write_text("one\teins\ntwo\tzwei\n" * 20)
    for arguments in ([corpus], [tmp_path / "run" / "*.tsv"]):
        with pytest.raises(
            SaccadeError, match=rf"{corpus}: lies in {tmp_path / 'run'}, which --restart would throw away"
        ):
            train(*map(str, arguments), *tiny, out=tmp_path / "run", restart=True, quiet=True)
    assert corpus.exists()


def test_fine_tuning_keeps_the_model_and_says_what_it_cannot_change(tmp_path):
    base = settings_from(["model.size=tiny", "model.norm=post"])
    kept = tuned_from(settings_from(["model.attention_dropout=0.3"]), base, tmp_path)
    assert (kept.model.norm, kept.model.attention_dropout) == ("post", 0.3)
    with pytest.raises(SaccadeError, match=r"model\.activation='gelu' cannot be had with --from"):
        tuned_from(settings_from(["model.activation=gelu"]), base, tmp_path)
    with pytest.raises(SaccadeError, match=r"model\.norm='pre' cannot be had with --from .* has 'post'"):
        tuned_from(settings_from(["model.norm=pre"]), base, tmp_path)  # though it is the default


def test_a_fine_tuning_goes_on_with_the_dropout_it_was_begun_with(tmp_path, second, tiny):
    tuned = [value for value in tiny if not value.startswith("model.")] + ["data.old_valid_pairs=0"]
    out = {"out": tmp_path / "run", "start_from": second, "quiet": True}
    train(*tuned, "model.dropout=0.25", "training.max_steps=2", **out)
    with pytest.raises(
        SaccadeError, match=r"was started with model\.dropout=0\.25, now it is 0\.5; give the old value"
    ):
        train(*tuned, "model.dropout=0.5", "training.max_steps=4", **out)
    assert train(*tuned, "training.max_steps=4", **out).config.model.dropout == 0.25


@pytest.mark.parametrize("setting", ["model.family=rnn", "model.width=64"])
def test_another_model_than_the_old_one_is_refused_before_anything_is_done(setting, trained, tiny, tmp_path):
    data = [value for value in tiny if not value.startswith("model.")]
    shutil.copytree(trained, tmp_path / "run")
    name = setting.partition("=")[0]
    with pytest.raises(SaccadeError, match=rf"{name}=.* cannot be had with --from {trained}.*leave it out"):
        train(*data, setting, out=tmp_path / "run", start_from=trained, restart=True, quiet=True)
    assert (tmp_path / "run" / "model.safetensors").exists(), "--restart threw it away before all was checked"


def test_sentences_beyond_the_positions_are_refused_before_the_first_step(tmp_path):
    with StoreWriter(tmp_path / "store", source_vocabulary=50, target_vocabulary=50) as writer:
        writer.append([5] * 12, [6] * 3)
    store = Store(tmp_path / "store")
    check_lengths(settings_from(["model.positions=learned", "model.max_positions=13"]), store)
    check_lengths(settings_from(["model.max_positions=5"]), store)
    with pytest.raises(SaccadeError, match=r"model\.max_positions=12.*13 pieces"):
        check_lengths(settings_from(["model.positions=learned", "model.max_positions=12"]), store)


def test_forbidden_tokens_are_never_chosen():
    log_probs = torch.zeros(2, 5)
    found = forbid([1, 3])(log_probs, Prefixes(torch.zeros(2, 0), torch.arange(2), torch.ones(2)))
    assert torch.isinf(found).nonzero().tolist() == [[0, 1], [0, 3], [1, 1], [1, 3]]


def test_a_line_break_is_never_written(trained):
    """A model that wants nothing but line breaks still writes one line."""
    translator = saccade.load(trained)
    (newline,) = translator.tokenizers.target.encode("\n")[-1:]
    matrix = translator.model.output_matrix
    with torch.no_grad():
        matrix.zero_()
        matrix[newline] = 50.0
    assert newline in translator._line_breaks
    for translation in translator.translate(["seventeen", "3:45 PM"], beam=3):
        assert "\n" not in translation.text


def test_a_translation_can_be_compared_and_kept_in_a_set(trained):
    translator = saccade.load(trained)
    first, second = translator.translate("seventeen"), translator.translate("seventeen")
    assert first.n_best == []
    assert len({first, second}) == 2
    best = translator.translate("seventeen", beam=3, n_best=2)
    assert best.n_best[0] is best
    assert len(best.n_best) == 2


def test_a_finished_run_is_finished_the_same_way_again(tmp_path, tiny):
    """Whether it is killed before or after its record is written, the weights and what is said of them agree."""
    arguments = [*tiny, "training.max_steps=12", "training.validate_every=3", "training.average=3"]
    train(*arguments, out=tmp_path / "run", quiet=True)
    first = saccade.folder.read_record(tmp_path / "run")
    weights = (tmp_path / "run" / "model.safetensors").read_bytes()
    (tmp_path / "run" / "record.json").unlink()
    train(*arguments, out=tmp_path / "run", quiet=True)
    second = saccade.folder.read_record(tmp_path / "run")
    assert (second["chosen"], second["scores"]) == (first["chosen"], first["scores"])
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == weights


def test_the_demo_runs(tmp_path, monkeypatch, capsys):
    from saccade import demo

    monkeypatch.setattr(demo, "SCORED", 12)
    monkeypatch.setitem(demo.TRAINING, "max_steps", 3)
    monkeypatch.setitem(demo.TRAINING, "validate_every", 3)
    monkeypatch.setitem(demo.TRAINING, "validate_bleu_pairs", 2)
    monkeypatch.setattr(demo.shutil, "which", lambda name: None)  # as by `python -m saccade` where it is not installed
    monkeypatch.setattr(sys, "argv", ["saccade/__main__.py", "demo"])
    monkeypatch.chdir(tmp_path)
    demo.run_demo(tmp_path / "demo", minutes=1.0)
    said = capsys.readouterr().out
    for part in ("reference", "BLEU", "chrF2", "strongest", "Try next:", " -m saccade translate", "-m saccade info"):
        assert part in said


def test_a_sentence_of_endless_length_is_refused_by_its_line(trained):
    translator = saccade.load(trained)
    with pytest.raises(SaccadeError, match=r"line 8: a sentence of .* pieces, more than the 2,048 taken"):
        list(translator.stream(["seventeen", "x" * 100_000], first=7))
    with pytest.raises(SaccadeError, match="line 1: a sentence"):
        translator.score(["x" * 100_000], ["y"])


def test_a_refused_corpus_leaves_no_folder_behind(tmp_path, tiny):
    (tmp_path / "a.de").write_text("eins\n")
    (tmp_path / "a.en").write_text("one\ntwo\n")
    with pytest.raises(SaccadeError, match="differ in length"):
        train(str(tmp_path / "a.de"), str(tmp_path / "a.en"), *tiny, out=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_a_setting_without_its_section_is_told_which():
    with pytest.raises(SaccadeError, match=r"did you mean training\.max_steps=60\?"):
        settings_from(["max_steps=60"])


def test_weights_can_be_read_by_others(trained):
    assert (trained / "model.safetensors").stat().st_mode & 0o777 == (trained / "config.yaml").stat().st_mode & 0o777
