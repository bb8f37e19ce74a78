"""The command line and the Python interface, from a corpus to a translation, as a person uses them."""

import gzip
import json
import math
import os
import shutil
import subprocess
import sys
from importlib import metadata
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Command
from safetensors.torch import load_file

import saccade
from saccade import SaccadeError
from saccade.config import CleaningConfig, Config, RNNConfig, TransformerConfig
from saccade.folder import read_record
from saccade.reference import SECTIONS
from saccade.training import checkpoint

SCRIPT = Path(sys.executable).with_name("saccade")
LINES = ["January 5, 2021", "", "seventeen", "8:15 PM and seven euros", "   ", "Friday, March 28, 1986"]
STEPS = ["training.max_steps=4", "training.validate_every=2"]


def test_a_corpus_written_trained_on_and_translated_through_pipes(tmp_path: Path, tiny: list[str]) -> None:
    """All of it in processes of their own, as in the README."""
    python = [sys.executable, "-m", "saccade"]
    subprocess.run([*python, "corpus", "en", "de", "--pairs", "200", "--out", "dates"], check=True, cwd=tmp_path)
    line = [*python, "train", "dates.en", "dates.de", *tiny, *STEPS, "--out", "run"]
    trained = subprocess.run(line, check=True, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    for said in ("kept", "validation: 20 pairs held out", "vocabulary:", "estimate:", "validation BLEU", "run: ready"):
        assert said in trained.stderr
    text = "".join(line + "\n" for line in LINES).encode()
    translated = subprocess.run([*python, "translate", "run"], input=text, cwd=tmp_path, capture_output=True)
    assert translated.returncode == 0
    assert all(line.startswith(b"guard: ") for line in translated.stderr.splitlines())  # four steps teach little
    out = translated.stdout.decode().split("\n")
    assert out.pop() == ""
    assert out == [t.text for t in saccade.load(tmp_path / "run").translate(LINES)]


def test_a_reader_that_goes_away_ends_translate_without_a_traceback(trained: Path) -> None:
    line = [sys.executable, "-m", "saccade", "translate", str(trained), "--beam", "1"]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        assert run.stdin is not None
        assert run.stdout is not None
        assert run.stderr is not None
        run.stdout.close()
        run.stdin.write(b"seventeen\n" * 20)
        run.stdin.close()
        said = run.stderr.read().decode()
    assert "Traceback" not in said
    assert "Error" not in said
    assert run.returncode != 0


def test_the_script_is_the_module() -> None:
    environment = os.environ | {"COLUMNS": "100", "TERM": "dumb"}
    answers = [
        subprocess.run([*line, "settings"], capture_output=True, check=True, env=environment).stdout
        for line in ([sys.executable, "-m", "saccade"], [str(SCRIPT)])
    ]
    assert answers[0] == answers[1]
    assert answers[0].startswith(b"# Settings")


def test_the_version_is_that_of_the_folders(command: Command, trained: Path) -> None:
    assert command("--version").out.strip() == saccade.__version__ == read_record(trained)["saccade"]


def test_a_tree_that_is_not_installed_trains_to_the_end(
    tmp_path: Path, tiny: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `python -m saccade` runs it where nothing can be installed; the card says so in place of a version."""

    def of_what_is_installed(name: str) -> str:
        if name == "saccade":
            raise metadata.PackageNotFoundError(name)
        return "1"

    monkeypatch.setattr(metadata, "version", of_what_is_installed)
    saccade.train(*tiny, "training.max_steps=1", "training.validate_every=1", out=tmp_path / "run", quiet=True)
    assert read_record(tmp_path / "run")["saccade"] == "0+not.installed"


def test_help_needs_no_torch() -> None:
    code = (
        "import sys, saccade.__main__ as m; sys.argv = ['saccade', '--help']\ntry: m.main()\nexcept SystemExit: pass\n"
    )
    code += "print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("False\n")
    for name in ("train", "translate", "evaluate", "score", "info", "average", "corpus", "settings", "explain", "demo"):
        assert f" {name} " in done.stdout


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        pytest.param("seventeen\nJune 7, 1999\n", ["seventeen", "June 7, 1999"], id="plain"),
        pytest.param("seventeen\r\n\r\nJune 7, 1999\r\n", ["seventeen", "", "June 7, 1999"], id="windows"),
        pytest.param("seventeen\nJune 7, 1999", ["seventeen", "June 7, 1999"], id="last line without its end"),
        pytest.param("\n\n \n", ["", "", " "], id="blank"),
        pytest.param("", [], id="nothing"),
        pytest.param("\ufeffseventeen\n", ["seventeen"], id="byte order mark"),
        pytest.param("a\u2028b\x0bc\x85d\n日本\n🙂\n", ["a\u2028b\x0bc\x85d", "日本", "🙂"], id="odd characters"),
    ],
)
def test_translate_writes_a_line_for_each_line(
    trained: Path, command: Command, tmp_path: Path, text: str, lines: list[str]
) -> None:
    expected = "".join(t.text + "\n" for t in saccade.load(trained).translate(lines, beam=2))
    piped = command("translate", trained, "--beam", 2, stdin=text.encode())
    assert (piped.status, piped.out) == (0, expected)
    assert all(line.startswith("guard: ") for line in piped.err.splitlines())
    (tmp_path / "in.gz").write_bytes(gzip.compress(text.encode()))
    named = command("translate", trained, "--beam", 2, "--input", tmp_path / "in.gz", "--output", tmp_path / "out")
    assert (named.status, named.out) == (0, "")
    assert (tmp_path / "out").read_bytes().decode() == expected
    assert expected.count("\n") == len(lines)
    for line, translated in zip(lines, expected.split("\n"), strict=False):
        assert line.strip() or translated == line, "a blank line stays what it is"


def test_more_lines_than_fit_in_a_window_stay_in_order(
    trained: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = command("translate", trained, "--beam", 1, stdin="\n".join(LINES).encode())
    monkeypatch.setattr("saccade.commands.translate.WINDOW", 2)
    windows = command("translate", trained, "--beam", 1, stdin="\n".join(LINES).encode())
    assert windows == whole
    numbered = command("translate", trained, "--n-best", 1, stdin="\n".join(LINES).encode())
    assert [line.split(" ||| ")[0] for line in numbered.out.splitlines()] == ["0", "1", "2", "3", "4", "5"]


def test_n_best_writes_so_many_a_sentence_the_best_first(trained: Path, command: Command) -> None:
    done = command("translate", trained, "--beam", 4, "--n-best", 3, stdin="\n".join(LINES[:3]).encode())
    rows = [line.split(" ||| ") for line in done.out.splitlines()]
    assert [int(number) for number, _, _ in rows] == [0, 0, 0, 1, 2, 2, 2]
    translator = saccade.load(trained)
    (first, _, third) = translator.translate(LINES[:3], beam=4, n_best=3)
    assert [row[1] for row in rows] == [t.text for t in chain(first.n_best, [_], third.n_best)]
    assert [row[2] for row in rows[:3]] == [f"{t.score:.4f}" for t in first.n_best]
    assert len({t.text for t in third.n_best}) == 3


def test_the_search_can_be_chosen_by_the_call(trained: Path, command: Command) -> None:
    options = "--beam", 3, "--length-penalty", 0, "--coverage-penalty", 0.4
    done = command("translate", trained, *options, stdin="\n".join(LINES).encode())
    translations = saccade.load(trained).translate(LINES, beam=3, length_penalty=0.0, coverage_penalty=0.4)
    assert done.out.split("\n")[:-1] == [t.text for t in translations]


def test_score_gives_the_log_probability_that_translate_gave(trained: Path, command: Command, tmp_path: Path) -> None:
    sources = [pair.split("\t")[0] for pair in corpus_of(command, tmp_path, 40)]
    translator = saccade.load(trained)
    tokenizer = translator.tokenizers.target
    compared = 0
    for beam in (1, 4):
        translations = translator.translate(sources, beam=beam)
        (tmp_path / "src").write_text("".join(t.source + "\n" for t in translations), encoding="utf-8")
        (tmp_path / "tgt").write_text("".join(t.text + "\n" for t in translations), encoding="utf-8")
        done = command("score", trained, "--source", tmp_path / "src", "--target", tmp_path / "tgt")
        assert done.status == 0
        scores = [float(line) for line in done.out.splitlines()]
        assert len(scores) == len(sources)
        for translation, score in zip(translations, scores, strict=True):
            # The search may have spelled the text otherwise than the tokenizer does, and then it scored other pieces.
            if tokenizer.pieces(tokenizer.encode(translation.text)) == translation.tokens:
                assert score == pytest.approx(translation.score, abs=1e-4)
                compared += 1
    assert compared > 10


def test_score_refuses_sides_that_do_not_match(trained: Path, command: Command, tmp_path: Path) -> None:
    (tmp_path / "src").write_text("one\ntwo\n")
    (tmp_path / "tgt").write_text("eins\n")
    done = command("score", trained, "--source", tmp_path / "src", "--target", tmp_path / "tgt")
    assert done.status == 2
    assert "ends before" in done.err


def test_evaluate_prints_signed_scores_and_json(trained: Path, command: Command, tmp_path: Path) -> None:
    write_test_set(command, tmp_path)
    files = "--source", tmp_path / "test.en", "--reference", tmp_path / "test.de"
    done = command("evaluate", trained, *files, "--beam", 1)
    assert done.status == 0
    lines = done.out.splitlines()
    assert [line.split()[0] for line in lines] == ["BLEU", "chrF2", "TER"]
    assert all("|version:" in line for line in lines)
    answer = json.loads(command("evaluate", trained, *files, "--beam", 1, "--json").out)
    assert answer["comparisons"] == []
    assert [f"{s['metric']} {s['value']:.2f} ({s['signature']})" for s in answer["scores"]] == lines

    command("translate", trained, "--beam", 1, "-i", tmp_path / "test.en", "-o", tmp_path / "made.de")
    assert command("evaluate", tmp_path / "made.de", *files).out == done.out
    twice = command("evaluate", tmp_path / "made.de", *files, "--reference", tmp_path / "test.de", "--lowercase")
    assert "nrefs:2|case:lc" in twice.out


def test_evaluate_tells_two_systems_apart(trained: Path, command: Command, tmp_path: Path) -> None:
    write_test_set(command, tmp_path)
    files = "--source", tmp_path / "test.en", "--reference", tmp_path / "test.de"
    options = "--beam", 1, "--samples", 100, "--json"
    better = json.loads(command("evaluate", tmp_path / "test.de", *files, "--against", trained, *options).out)
    bleu = better["comparisons"][0]
    assert bleu["metric"].lower() == "bleu"
    assert bleu["system"] == pytest.approx(100)
    assert bleu["difference"] > 50
    assert bleu["p_value"] < 0.05
    same = json.loads(command("evaluate", trained, *files, "--against", trained, *options).out)
    assert [(c["difference"], c["p_value"]) for c in same["comparisons"]] == [(0.0, 1.0)] * 3
    text = command("evaluate", tmp_path / "test.de", *files, "--against", trained, *options[:-1]).out
    assert [line.split()[2] for line in text.splitlines()] == ["→", "→", "→"]


def test_info_says_what_is_in_a_folder(trained: Path, command: Command) -> None:
    facts = json.loads(command("info", trained, "--json").out)
    weights = load_file(trained / "model.safetensors")
    assert facts["parameters"] == f"{sum(tensor.numel() for tensor in weights.values()):,}"
    assert facts["languages"] == "en → de"
    assert facts["training"].startswith("120 steps, ")
    assert "built-in en-de" in facts["data"]
    assert [score.split()[0] for score in facts["scores"]] == ["BLEU", "chrF2"]
    text = command("info", trained).out
    for name in facts:
        assert name in text


def test_average_of_a_folder_is_the_mean_of_its_last_checkpoints(
    trained: Path, command: Command, tmp_path: Path
) -> None:
    done = command("average", trained, "--last", 2, "--out", tmp_path / "mean")
    assert done.status == 0
    last = [load_file(place / "model.safetensors") for place in checkpoint.checkpoints(trained / "resume")[-2:]]
    assert len(last) == 2
    for name, tensor in load_file(tmp_path / "mean" / "model.safetensors").items():
        torch.testing.assert_close(tensor, (last[0][name] + last[1][name]) / 2)
    assert len(saccade.load(tmp_path / "mean").translate(LINES)) == len(LINES)
    assert not (tmp_path / "mean" / "record.json").exists(), "the scores of other weights are not its own"


def test_average_of_files_and_what_is_refused(trained: Path, command: Command, tmp_path: Path) -> None:
    files = [place / "model.safetensors" for place in checkpoint.checkpoints(trained / "resume")[-2:]]
    assert command("average", *files, "--out", tmp_path / "files").status == 0
    assert command("average", trained, "--last", 2, "--out", tmp_path / "folder").status == 0
    assert (tmp_path / "files/model.safetensors").read_bytes() == (tmp_path / "folder/model.safetensors").read_bytes()
    again = command("average", *files, "--out", tmp_path / "files")
    assert again.status == 2
    assert "is there already; choose another --out" in again.err
    shutil.copytree(trained, tmp_path / "bare", ignore=shutil.ignore_patterns("resume"))
    bare = command("average", tmp_path / "bare", "--out", tmp_path / "none")
    assert bare.status == 2
    assert "has no checkpoints in resume/ to average" in bare.err
    assert not (tmp_path / "none").exists()


def test_the_settings_page_names_every_setting_with_a_sentence(command: Command) -> None:
    page = command("settings").out
    for _, prefix, section in SECTIONS:
        for name, field in section.model_fields.items():
            if field.description and name != "cleaning":
                assert f"| `{prefix}.{name}` |" in page
                assert field.description in page
    assert "None" not in page


def test_the_schema_has_a_property_for_each_setting(command: Command) -> None:
    schema = json.loads(command("settings", "--schema").out)
    assert schema["type"] == "object"
    assert schema["properties"].keys() == Config.model_fields.keys()
    for section in {section for _, _, section in SECTIONS} | {CleaningConfig, TransformerConfig, RNNConfig}:
        properties = schema["$defs"][section.__name__]["properties"]
        assert properties.keys() == section.model_fields.keys()
        assert schema["$defs"][section.__name__]["additionalProperties"] is False


def test_corpus_writes_two_files_that_share_no_value_with_another_split(command: Command, tmp_path: Path) -> None:
    train, test = (set(corpus_of(command, tmp_path, 200, split)) for split in ("train", "test"))
    assert len(train) > 190
    assert not train & test
    refused = command("corpus", "en", "xx", "--out", tmp_path / "no")
    assert refused.status == 2
    assert "xx" in refused.err


def test_fine_tuning_keeps_the_tokenizer_and_the_model_and_starts_from_the_weights(
    trained: Path, command: Command, tmp_path: Path, tiny: list[str]
) -> None:
    corpus_of(command, tmp_path, 100)
    settings = [setting for setting in tiny if not setting.startswith("model.")]
    files = tmp_path / "train.en", tmp_path / "train.de"
    # A rate next to nothing: what comes out is what went in.
    still = "training.learning_rate=1e-12"
    done = command("train", *files, *settings, *STEPS, still, "--from", trained, "--out", tmp_path / "tuned")
    assert done.status == 0
    assert f"weights: from {trained}" in done.err.replace("\n", "")
    assert (tmp_path / "tuned/tokenizer.json").read_bytes() == (trained / "tokenizer.json").read_bytes()
    before, after = load_file(trained / "model.safetensors"), load_file(tmp_path / "tuned/model.safetensors")
    for name in before:
        torch.testing.assert_close(after[name], before[name], atol=1e-6, rtol=0)
    base, tuned = (Config.load(folder / "config.yaml") for folder in (trained, tmp_path / "tuned"))
    assert tuned.model == base.model
    assert tuned.tokenizer.kind == base.tokenizer.kind
    command("train", *files, *settings, *STEPS, "--from", trained, "--out", tmp_path / "moved", "--quiet")
    moved = load_file(tmp_path / "moved/model.safetensors")
    assert any(not torch.equal(moved[name], before[name]) for name in before)


def test_fine_tuning_works_for_every_kind_of_pieces(tmp_path: Path, tiny: list[str]) -> None:
    saccade.train(*tiny, *STEPS, "tokenizer.kind=bytes", out=tmp_path / "base", quiet=True)
    saccade.train(*tiny, *STEPS, out=tmp_path / "tuned", start_from=tmp_path / "base", quiet=True)
    assert Config.load(tmp_path / "tuned" / "config.yaml").tokenizer.kind == "bytes"
    assert saccade.load(tmp_path / "tuned").tokenizers.source.kind == "bytes"
    more = [*STEPS, "training.max_steps=6", "training.warmup_steps=1"]
    saccade.train(*tiny, *more, out=tmp_path / "tuned", start_from=tmp_path / "base", quiet=True)
    assert read_record(tmp_path / "tuned")["steps"] == 6, "fine-tuning goes on like any run"


def test_cleaning_drops_pairs_and_says_which_and_no_clean_keeps_them(
    command: Command, tmp_path: Path, tiny: list[str]
) -> None:
    pairs = [*corpus_of(command, tmp_path, 60), "same words\tsame words", "alone\t "]
    (tmp_path / "dirty.tsv").write_text("".join(pair + "\n" for pair in pairs), encoding="utf-8")
    cleaned = command("train", tmp_path / "dirty.tsv", *tiny, *STEPS, "--out", tmp_path / "cleaned")
    assert cleaned.status == 0
    assert "1 copy" in cleaned.err
    assert "1 target blank" in cleaned.err
    assert "“same words” → “same words”" in cleaned.err
    kept = command("train", tmp_path / "dirty.tsv", *tiny, *STEPS, "--no-clean", "--out", tmp_path / "kept")
    assert kept.status == 0
    assert "kept all 62 pairs" in kept.err
    data = read_record(tmp_path / "kept")["data"]
    assert (data["read"], data["kept"]) == (62, 62)


def test_quiet_says_nothing(command: Command, tmp_path: Path, tiny: list[str]) -> None:
    done = command("train", *tiny, *STEPS, "--quiet", "--out", tmp_path / "run")
    assert (done.status, done.out, done.err) == (0, "", "")


def test_a_pair_of_files_in_a_pipe_and_a_recipe(
    command: Command, tmp_path: Path, tiny: list[str], trained: Path
) -> None:
    """TSV on standard input, settings in a file, the command line on top of both."""
    pairs = corpus_of(command, tmp_path, 50)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("data: {source: en, target: fr}\ntraining: {max_steps: 99, validate_every: 2}\n")
    stdin = "".join(pair + "\n" for pair in pairs).encode()
    valid = "--valid", tmp_path / "train.en", tmp_path / "train.de"
    settings = [setting for setting in tiny if "valid_pairs" not in setting]
    done = command(
        "train", "-", "-c", recipe, *valid, *settings, "training.max_steps=2", "--out", tmp_path / "run", stdin=stdin
    )
    assert done.status == 0
    config = Config.load(tmp_path / "run" / "config.yaml")
    assert (config.data.train, config.data.target, config.training.max_steps) == (["-"], "fr", 2)
    assert "held out" not in done.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train", "training.max_step=3"], "unknown setting training.max_step; did you mean training.max_steps?"),
        (["train", "model.widht=3"], "unknown setting model.widht; did you mean model.width?"),
        (["train", "trainin.max_steps=3"], "value, without spaces; did you mean training.max_steps=3?"),
        (["compare", "recipe.yaml", "trainin.max_steps=3"], "did you mean training.max_steps=3?"),
        (["train", "max_steps=3"], "max_steps is neither a setting nor a file; settings are written section.key=value"),
        (["train", "training.max_steps", "=", "3"], "'=': this is neither a setting nor a file"),
        (["serve", "TRAINED", "--port", "99999"], "--port=99999: input should be less than or equal to 65535"),
        (["translate", "TRAINED", "Two dogs"], "to translate the sentence: echo 'Two dogs' | saccade"),
        (
            ["evaluate", "TRAINED", "--source", "TEXT", "--reference", "ONE"],
            "--source text.txt has 2 lines, --reference one.txt 1",
        ),
        (["train", "training.max_steps=many"], "training.max_steps='many': input should be a valid integer"),
        (["train", "model.family=lstm"], "model.family='lstm' is not known; use transformer, rnn, conv"),
        (["train", "nowhere.de", "nowhere.en"], "nowhere.de: there is no such file"),
        (["train", "-c", "nowhere.yaml"], "nowhere.yaml: cannot read the configuration"),
        (["train", "--from", "nowhere"], "nowhere"),
        (["train", "training.device=gpu"], "training.device='gpu' is not a device"),
        (["translate", "nowhere"], "nowhere: there is no such folder; train one with: saccade train"),
        (["info", "nowhere"], "nowhere: there is no such folder"),
        (["translate", "TEXT", "TRAINED"], "text.txt: is a file, not a folder that saccade train made"),
        (["info", "."], "has no config.yaml, so it is not a finished Saccade folder"),
        (["average", "nowhere", "--out", "mean"], "nowhere"),
        (["translate", "TRAINED", "-i", "nowhere.txt"], "nowhere.txt: there is no such file"),
        (["translate", "TRAINED", "--beam", "2", "--n-best", "3"], "search.n_best=3 is more than search.beam=2"),
        (["translate", "TRAINED", "--beam", "0"], "search.beam=0: input should be greater than 0"),
        (
            ["translate", "TRAINED", "--temperature", "0.5"],
            "search.temperature=0.5 says nothing with search.method=beam",
        ),
        (["translate", "TRAINED", "--method", "sample", "--groups", "2"], "leave it out, or set search.method=diverse"),
        (["translate", "TRAINED", "--top-k", "5"], "set search.method=sample or search.method=contrastive"),
        (["translate", "TRAINED", "--device", "gpu"], "'gpu' is not a device"),
        (["evaluate", "TRAINED", "--source", "TEXT", "--reference", "nowhere.de"], "nowhere.de: there is no such file"),
        (["evaluate", "TEXT", "--source", "TEXT", "--reference", "TEXT", "--tokenize", "13b"], "tokenize='13b'"),
        (["train"], "trained already"),
    ],
)
def test_a_users_mistake_is_said_in_words_with_status_2(
    trained: Path,
    command: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("one\ntwo\n")
    (tmp_path / "one.txt").write_text("one\n")
    places = {"TRAINED": str(trained), "TEXT": "text.txt", "ONE": "one.txt"}
    out = ["--out", str(trained) if said == "trained already" else "run"] if arguments[0] == "train" else []
    done = command(*(places.get(argument, argument) for argument in arguments), *out, stdin=b"seventeen\n")
    assert done.status == 2
    assert done.err.startswith("error: ")
    assert said in done.err
    assert done.out == ""


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["model.width=30", "model.heads=4"], "model.width=30 cannot be split among model.heads=4"),
        (["tokenizer.kind=bytes", "training.subword_dropout=0.1"], "training.subword_dropout=0.1 needs tokenizer.kind"),
        (["tokenizer.joint=false", "model.tied=all"], "model.tied=all needs one vocabulary for both sides"),
        (["model.family=rnn", "model.bidirectional=false"], "set model.bidirectional=true"),
    ],
)
def test_settings_that_cannot_go_together_are_refused_before_the_corpus_is_read(
    command: Command, tmp_path: Path, settings: list[str], said: str
) -> None:
    done = command("train", "data.builtin_pairs=50", "data.valid_pairs=5", *settings, "--out", tmp_path / "run")
    assert done.status == 2
    assert said in done.err
    assert "kept" not in done.err, "a large corpus takes minutes to read, and the mistake was plain before"


@pytest.mark.parametrize("arguments", [["nonsense"], ["translate"], ["train", "--nonsense"], ["score", "x"]])
def test_a_command_that_is_not_one_ends_with_status_2(command: Command, arguments: list[str]) -> None:
    done = command(*arguments)
    assert done.status == 2
    assert "Usage" in done.err


def test_python_takes_the_settings_of_the_command_line(command: Command, tmp_path: Path, tiny: list[str]) -> None:
    command("train", *tiny, *STEPS, "training.seed=3", "search.beam=2", "--quiet", "--out", tmp_path / "line")
    sections: dict[str, dict[str, object]] = {"training": {"seed": 3}, "search": {"beam": 2}}
    translator = saccade.train(*tiny, *STEPS, out=tmp_path / "python", quiet=True, **sections)
    for name in ("config.yaml", "model.safetensors", "tokenizer.json"):
        assert (tmp_path / "line" / name).read_bytes() == (tmp_path / "python" / name).read_bytes()
    loaded = saccade.load(tmp_path / "line")
    assert [t.text for t in translator.translate(LINES)] == [t.text for t in loaded.translate(LINES)]
    with pytest.raises(SaccadeError, match="unknown section 'trainer'; sections are data, tokenizer"):
        saccade.train(out=tmp_path / "no", trainer={"seed": 3})


def test_languages_come_from_the_names_of_the_files(command: Command, tmp_path: Path, tiny: list[str]) -> None:
    corpus_of(command, tmp_path, 30)
    for language, name in (("en", "a.fr"), ("de", "a.nl.gz")):
        text = (tmp_path / f"train.{language}").read_bytes()
        (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    settings = [*tiny, *STEPS, "data.valid_pairs=3"]
    saccade.train(tmp_path / "a.fr", tmp_path / "a.nl.gz", *settings, out=tmp_path / "run", quiet=True)
    config = Config.load(tmp_path / "run" / "config.yaml")
    assert (config.data.source, config.data.target) == ("fr", "nl")


def test_a_translation_knows_its_score_its_pieces_and_where_it_looked(trained: Path) -> None:
    translator = saccade.load(trained)
    one = translator.translate("Friday, March 28, 1986")
    many = translator.translate(["seventeen", "", "Friday, March 28, 1986"])
    assert [t.source for t in many] == ["seventeen", "", "Friday, March 28, 1986"]
    assert (many[2].text, many[1].text, many[1].tokens, many[1].alignment) == (one.text, "", [], [])
    assert one.score == pytest.approx(many[2].score, abs=1e-4)
    assert one.text.strip(), "the model of these tests says something"
    assert -math.inf < one.score < 0
    assert "".join(one.tokens).replace("▁", " ").strip() == one.text.strip()

    pieces = len(translator.tokenizers.source.encode(one.source)) + 1
    assert [layer.shape for layer in one.attentions] == [(2, len(one.tokens) + 1, pieces)]
    np.testing.assert_allclose(one.attentions[0].sum(-1), 1, atol=1e-5)
    assert one.source_words == one.source.split()
    assert one.target_words == one.text.split()
    assert [target for _, target in one.alignment] == list(range(len(one.target_words)))
    assert all(0 <= source < len(one.source_words) for source, _ in one.alignment)
    assert many[1].attentions == []
    assert translator.score([one.source], [one.text])[0] <= one.score + 1e-4


def test_an_answer_does_not_depend_on_what_is_translated_with_it(trained: Path) -> None:
    translator = saccade.load(trained)
    together = translator.translate(LINES * 3)
    alone = [translator.translate(line) for line in LINES]
    assert [t.text for t in together] == [t.text for t in alone] * 3
    small = translator.translate(LINES, batch_tokens=1)
    assert [t.text for t in small] == [t.text for t in alone]


def corpus_of(command: Command, folder: Path, pairs: int, split: str = "train") -> list[str]:
    """The pairs that `saccade corpus` writes to SPLIT.en and SPLIT.de, with a tab between."""
    done = command("corpus", "en", "de", "--pairs", pairs, "--split", split, "--out", folder / split)
    assert done.status == 0
    sides = [(folder / f"{split}.{language}").read_text(encoding="utf-8") for language in ("en", "de")]
    source, target = (side.removesuffix("\n").split("\n") for side in sides)
    assert len(source) == len(target) == pairs
    return ["\t".join(pair) for pair in zip(source, target, strict=True)]


def write_test_set(command: Command, folder: Path) -> None:
    corpus_of(command, folder, 30, "test")
