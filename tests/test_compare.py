"""Recipes side by side: one table, resumable, one failure loses nothing else."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import pytest
from conftest import Command, Done

from saccade.comparing import measure, run
from saccade.comparing.figures import draw_figures
from saccade.comparing.plan import Plan, Row, rows_of
from saccade.comparing.results import read_result, write_result
from saccade.comparing.table import Line, by_length, length_edges, lines_of, spread, to_markdown
from saccade.display import Display
from saccade.errors import SaccadeError
from saccade.files import alone

PYTHON = sys.executable
SETTINGS = ["data.builtin_pairs=300", "data.valid_pairs=20", "search.beam=1", "training.threads=1"]
BASE = """model: {family: rnn, wiring: cho, embedding: 24, width: 24}
training: {max_steps: 6, validate_every: 3, batch_tokens: 256, device: cpu, tensorboard: false, validate_bleu_pairs: 4}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recipes: one without attention, one with, one that no paper has."""
    place = tmp_path_factory.mktemp("compare")
    (place / "cho.yaml").write_text(BASE)
    (place / "bahdanau.yaml").write_text("extends: cho.yaml\nmodel: {wiring: bahdanau}\n")
    (place / "impossible.yaml").write_text("extends: cho.yaml\nmodel: {wiring: bahdanau, bidirectional: false}\n")
    (place / "gold").write_text("0-0 1-1\n0-0\n")
    (place / "gold.en").write_text("January 5, 2021\nseventeen\n")
    (place / "gold.de").write_text("5. Januar 2021\nsiebzehn\n")
    return place


def arguments(place: Path, *rows: str) -> list[str]:
    gold = ["--gold", place / "gold", "--gold-text", place / "gold.en", place / "gold.de"]
    recipes = [place / f"{row}.yaml" for row in rows]
    return [str(part) for part in ["compare", *recipes, *SETTINGS, *gold, "--out", place / "out", "--device", "cpu"]]


@pytest.fixture(scope="module", autouse=True)
def _rows_start_at_once(clients: Path) -> Iterator[None]:
    """Each row is still measured by a process of its own, which need not import torch again."""
    sys.executable = str(clients / "python")
    yield
    sys.executable = PYTHON


@pytest.fixture(scope="module")
def first(place: Path, command: Command) -> Done:
    return command(*arguments(place, "cho", "impossible", "bahdanau"), "--seeds", "2", "--jobs", "2")


def test_a_recipe_that_fails_is_named_and_the_others_are_kept(place: Path, first: Done) -> None:
    assert first.status == 2
    assert "1 of 3 rows failed: impossible" in first.err
    rows = {row["name"]: row for row in json.loads((place / "out" / "table.json").read_text())["rows"]}
    assert "model.bidirectional=true" in rows["impossible"]["failed"]
    assert rows["impossible"]["failed"].startswith("seed 2: ")
    assert rows["impossible"]["bleu"] == []
    for name in ("cho", "bahdanau"):
        assert rows[name]["failed"] is None
        assert len(rows[name]["bleu"]) == len(rows[name]["chrf"]) == 2
        assert rows[name]["train_tokens_per_second"] > 0
        assert rows[name]["decode_tokens_per_second"] > 0
        assert [point["length"] for point in rows[name]["cost"]] == [8, 16, 32, 64, 128, 256]
        first, last = (point["tokens"] for point in rows[name]["curve"])
        assert 0 < first < last == rows[name]["target_tokens"], "however seldom steps are logged"


def test_the_time_to_quality_says_which_quality(place: Path, first: Done) -> None:
    rows = json.loads((place / "out" / "table.json").read_text())["rows"]
    best = max(point["bleu"] for row in rows for point in row["curve"])
    assert {row["quality"] for row in rows} == {0.9 * best}
    assert f"a validation BLEU of {0.9 * best:.2f} (greedy) is reached" in first.out


def test_two_comparisons_do_not_share_a_folder(place: Path, first: Done, command: Command) -> None:
    kept = (place / "out" / "plan.json").read_text()
    with alone(place / "out", "wait"):
        done = command(*arguments(place, "cho"), "--seeds", "3")
    assert done.status == 2
    assert f"{place / 'out'}: process {os.getpid()} is at work there" in done.err
    assert (place / "out" / "plan.json").read_text() == kept


def test_only_rows_that_attend_have_alignments(place: Path, first: Done) -> None:
    rows = {row["name"]: row for row in json.loads((place / "out" / "table.json").read_text())["rows"]}
    assert rows["cho"]["error_rate"] == []
    assert rows["cho"]["drawn"] is None
    assert all(0 <= rate <= 1 for rate in rows["bahdanau"]["error_rate"])
    weights = rows["bahdanau"]["drawn"]["weights"]
    assert len(weights) == len(rows["bahdanau"]["drawn"]["target"])


def test_each_row_is_tested_against_the_one_above_that_was_measured(place: Path, first: Done) -> None:
    rows = {row["name"]: row for row in json.loads((place / "out" / "table.json").read_text())["rows"]}
    assert rows["cho"]["p_value"] is None
    assert 0 <= rows["bahdanau"]["p_value"] <= 1


def test_the_table_is_the_same_in_markdown_and_html_and_the_figures_are_drawings(place: Path, first: Done) -> None:
    out = place / "out"
    markdown, page = (out / "table.md").read_text(), (out / "index.html").read_text()
    assert first.out == markdown
    for name in ("cho", "bahdanau", "impossible"):
        assert f"| {name} |" in markdown
        assert f"<td>{name}</td>" in page
    figures = sorted(path.stem for path in (out / "figures").glob("*.svg"))
    assert figures == ["alignments", "bleu-by-length", "cost-by-length", "loss-curves"]
    for path in (out / "figures").glob("*.svg"):
        assert ElementTree.parse(path).getroot().tag.endswith("svg")
    assert page.count("<svg") == 4
    assert "http-equiv" not in page
    assert "<script" not in page


def test_a_second_run_measures_only_what_is_missing(place: Path, first: Done, command: Command) -> None:
    before = (place / "out" / "table.md").read_text()
    kept = place / "out" / "cho" / "seed-1.results" / "quality.json"
    stamp = kept.stat().st_mtime_ns
    (place / "out" / "bahdanau" / "seed-2.results" / "quality.json").unlink()
    again = command(*arguments(place, "cho", "bahdanau"), "--seeds", "2")
    assert again.status == 0, again.err
    assert "quality: 3 of 4 are measured already" in again.err
    assert "quality: bahdanau, seed 2: done" in again.err
    assert kept.stat().st_mtime_ns == stamp
    after = (place / "out" / "table.md").read_text()
    scores = [line.split("|")[2:5] for line in before.splitlines() if line.startswith(("| cho", "| bahdanau"))]
    assert scores == [line.split("|")[2:5] for line in after.splitlines() if line.startswith(("| cho", "| bahdanau"))]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["search.n_best=9"], "search.n_best=9 is more than search.beam=1"),
        (["--device", "gpu"], "--device='gpu' is not a device"),
        (["--data", "none.en", "none.de", "--test", "{test}.en", "{test}.de"], "none.en: there is no such file"),
        (["training.seed=7"], "training.seed is each row's own"),
        (["data.target=de_DE", "--valid", "{test}.en", "none.de"], "none.de"),
    ],
)
def test_what_no_row_can_do_is_refused_before_any_is_begun(
    given: list[str], message: str, place: Path, command: Command
) -> None:
    given = [part.format(test=place / "gold") for part in given]
    out = place / "refused"
    done = command(*arguments(place, "cho", "bahdanau"), *given, "--out", out)
    assert done.status == 2
    assert message in done.err
    assert not out.exists()


def test_rows_of_other_pairs_than_all_are_scored_on_are_refused(place: Path, trained: Path, command: Command) -> None:
    for name, data in {
        "french": "{target: fr}",
        "own": f"{{train: [{place / 'gold.en'}, {place / 'gold.de'}]}}",
        "text": "{monolingual: true}",
    }.items():
        (place / f"{name}.yaml").write_text(f"extends: cho.yaml\ndata: {data}\n")
    for name, message in {
        "french": "translates en to fr, and the rows are scored on en to de; give data.source=en data.target=fr",
        "own": "own.yaml: data.train would be of this row alone",
        "text": "text.yaml: data.monolingual=true learns a text",
    }.items():
        done = command(*arguments(place, "cho", name), "--out", place / "refused")
        assert done.status == 2
        assert message in done.err
    other = [str(place / f"gold.{side}") for side in ("de", "en")]
    done = command("compare", trained, "--data", *other, "--test", *other, "--out", place / "refused")
    assert f"{trained}: translates en to de, and the rows are scored on de to en; name other files" in done.err
    assert not (place / "refused").exists()


def test_settings_of_search_are_those_of_folders_too_and_others_are_for_recipes(
    place: Path, trained: Path, command: Command
) -> None:
    told = ["compare", trained, "--no-speed", "--out", place / "searched"]
    done = command(*told, "model.width=32")
    assert done.status == 2
    assert "settings of model are for recipes" in done.err
    assert "error: --device='gpu' is not a device" in command(*told, "--device", "gpu").err
    texts = []
    for length in (1, 30):
        done = command(*told, f"search.max_length={length}", "search.min_length=0")
        assert done.status == 0, done.err
        texts.append((place / "searched" / trained.name / "seed-1.results" / "translations.txt").read_text())
    assert len(texts[0]) < len(texts[1])


def test_settings_that_no_row_can_have_are_refused_before_any_is_trained(place: Path, command: Command) -> None:
    told = [*arguments(place, "cho", "bahdanau"), "--out", place / "misspelt"]
    done = command(*told, "model.widht=3")
    assert done.status == 2
    assert "settings: unknown setting model.widht; did you mean model.width?" in done.err
    assert not (place / "misspelt").exists()


def test_what_was_trained_for_a_chosen_number_of_steps_can_be_measured_again(place: Path, command: Command) -> None:
    (place / "open.yaml").write_text(BASE.replace("max_steps: 6", "max_minutes: 0.005"))
    told = [*arguments(place, "open"), "--out", place / "again", "--no-speed"]
    assert command(*told).status == 0
    weights = place / "again" / "open" / "seed-1" / "model.safetensors"
    stamp = weights.stat().st_mtime_ns
    done = command(*told, "search.beam=2")
    assert done.status == 0, done.err
    assert "quality: open, seed 1: done" in done.err
    assert weights.stat().st_mtime_ns == stamp


def test_a_recipe_that_has_changed_says_which_folder_to_remove(place: Path, command: Command) -> None:
    told = [*arguments(place, "cho"), "--out", place / "changed", "--no-speed"]
    assert command(*told).status == 0
    done = command(*told, "model.width=32")
    assert done.status == 2
    assert f"here: remove {place / 'changed' / 'cho' / 'seed-1'}" in done.err


def test_files_that_have_changed_since_are_named_and_nothing_is_told_as_if_of_them(
    place: Path, command: Command, trained: Path
) -> None:
    folder = place / "files"
    folder.mkdir()
    for name in ("data", "test"):
        made = command("corpus", "--out", folder / name, "--pairs", "60", "--split", {"data": "train"}.get(name, name))
        assert made.status == 0, made.err
    sides = [[str(folder / f"{name}.{side}") for side in ("en", "de")] for name in ("data", "test")]
    out = folder / "out"
    told = ["compare", place / "cho.yaml", trained, *SETTINGS[1:], "--no-speed", "--out", out, "--data", *sides[0]]
    told += ["--test", *sides[1]]
    assert command(*told).status == 0
    kept = out / "cho" / "seed-1.results" / "quality.json"

    before = (folder / "test.de").read_text()
    (folder / "test.de").write_text(before.replace("1", "2"))
    again = command(*told)
    assert again.status == 0, again.err
    assert f"{folder / 'test.de'}: holds something else than when rows were measured" in again.err
    assert "measured already" not in again.err

    (folder / "data.en").write_text((folder / "data.en").read_text().replace("1", "2"))
    refused = command(*told)
    assert refused.status == 2
    assert f"{folder / 'data.en'}: holds something else than when cho was trained" in refused.err
    assert f"remove {out / 'cho' / 'seed-1'} to train it again" in refused.err

    shutil.rmtree(out / "cho" / "seed-1")
    assert "quality: cho, seed 1: done" in command(*told).err

    written = json.loads(kept.read_text())
    del written["files"]
    kept.write_text(json.dumps(written))
    (folder / "test.de").write_text(before)
    assert "quality: 1 of 2 are measured already" in command(*told).err, "as of results before digests were kept"


def test_a_trained_folder_is_a_row_too(place: Path, first: Done, trained: Path, command: Command) -> None:
    done = command(*arguments(place, "cho"), trained, "--out", place / "with-folder", "--no-speed")
    assert done.status == 0, done.err
    rows = json.loads((place / "with-folder" / "table.json").read_text())["rows"]
    assert [row["name"] for row in rows] == ["cho", trained.name]
    notes = (place / "with-folder" / "table.md").read_text()
    assert "Signatures:" in notes
    assert "Speeds:" not in notes, "none were measured"
    assert len(rows[1]["bleu"]) == 1


def test_a_folder_is_measured_by_the_engine_of_all_rows_though_it_was_exported_to_another(
    tmp_path: Path, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = Row("model", tmp_path / "model")
    shutil.copytree(trained, row.path)
    (row.path / "ctranslate2").mkdir()
    monkeypatch.setattr("saccade.engines.choose._ctranslate2", lambda *given: pytest.fail("by its export"))
    monkeypatch.setattr(measure, "LENGTHS", (8,))
    plan = Plan(out=str(tmp_path / "out"), device="cpu", overrides=("search.beam=1",))
    measure.quality(plan, row, 1)
    measure.speed(plan, row, 1)


def test_what_was_measured_of_a_folder_is_not_told_of_another_by_that_name(tmp_path: Path, trained: Path) -> None:
    same, other = (Row("model", tmp_path / name / "model") for name in ("same", "other"))
    for row in (same, other):
        shutil.copytree(trained, row.path)
    with open(other.path / "model.safetensors", "ab") as weights:
        weights.write(b"learned since")
    plan = Plan(out=str(tmp_path / "out"))
    write_result("quality", Row("model", trained), 1, plan, {"parameters": 1})
    assert read_result("quality", same, 1, plan) == {"parameters": 1}
    assert read_result("quality", other, 1, plan) is None


def test_an_interrupted_comparison_stops_its_rows_and_goes_on_later(place: Path, command: Command) -> None:
    line = [PYTHON, "-m", "saccade", *arguments(place, "cho"), "--out", str(place / "stopped")]
    long = [*line, "training.max_steps=100000", "training.patience=0", "training.validate_every=5"]
    with subprocess.Popen(long, stderr=subprocess.PIPE, start_new_session=True) as run:
        folder = place / "stopped" / "cho" / "seed-1" / "resume"
        deadline = time.monotonic() + 120
        while not list(folder.glob("step-*")) and time.monotonic() < deadline:
            time.sleep(0.2)
        run.send_signal(signal.SIGTERM)
        run.wait(60)
    assert run.returncode == 130
    time.sleep(0.5)
    assert _at_work_in(place / "stopped") == []
    assert list(folder.glob("step-*"))


def test_rows_that_run_at_the_same_time_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert [run.environment_of(jobs).get("OMP_NUM_THREADS") for jobs in (1, 2, 3, 12)] == [None, "4", "2", "1"]
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert run.environment_of(2)["OMP_NUM_THREADS"] == "3"


@pytest.mark.parametrize("how", ["Ctrl-C", "SIGKILL"])
def test_rows_save_and_stop_when_the_terminal_or_nobody_asks_for_them_any_more(how: str, place: Path) -> None:
    """A terminal's Ctrl-C goes to all processes of its group at once; a comparison that is killed can tell nobody."""
    out = place / how
    line = [PYTHON, "-m", "saccade", *arguments(place, "cho"), "--out", str(out), "--no-speed"]
    long = [*line, "training.max_steps=100000", "training.validate_every=50000", "training.checkpoint_every=5"]
    # Whoever runs the suite in the background may have it ignore Ctrl-C.
    hears = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(long, stderr=subprocess.PIPE, start_new_session=True, preexec_fn=hears) as run:
        folder = out / "cho" / "seed-1" / "resume"
        deadline = time.monotonic() + 120
        while not list(folder.glob("step-*")) and time.monotonic() < deadline:
            time.sleep(0.1)
        if how == "Ctrl-C":
            os.killpg(run.pid, signal.SIGINT)
        else:
            run.kill()
        run.wait(60)
    while (alive := _at_work_in(out)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert alive == []
    said = (out / "cho" / "seed-1.results" / "quality.log").read_text()
    assert re.search(r"stopped at step [\d,]+; the same command goes on", said), said


def test_an_interrupted_comparison_leaves_the_table_of_what_is_measured(
    place: Path, first: Done, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one row that is not measured yet is interrupted as it begins."""

    def interrupted(*given: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "_child", interrupted)
    (place / "new.yaml").write_text(BASE)
    rows = rows_of([place / f"{name}.yaml" for name in ("cho", "bahdanau", "new")])
    plan = Plan.load(place / "out" / "plan.json")
    with pytest.raises(KeyboardInterrupt):
        run.compare(rows, plan, jobs=1, quality=None, speed=False, display=Display(quiet=True))
    measured = json.loads((place / "out" / "table.json").read_text())["rows"]
    assert [len(row["bleu"]) for row in measured] == [2, 2, 0]
    assert "| new | – | not measured yet |" in (place / "out" / "table.md").read_text()


def test_a_row_that_was_killed_says_by_what_and_not_only_how_well_it_went(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("step 500  validation loss 3.5\n")
    said = run._last_words(tmp_path / "log", -signal.SIGKILL)
    assert said.startswith("ended by SIGKILL, as the system does where memory runs out; its last words: step 500")
    assert run._last_words(tmp_path / "log", 1).startswith("step 500")


def test_each_row_is_told_when_it_is_measured_though_one_process_measures_all(
    place: Path, first: Done, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, said = rows_of([place / f"{name}.yaml" for name in ("cho", "bahdanau")]), []
    plan = replace(Plan.load(place / "out" / "plan.json"), out=str(place / "told"))

    def measured(what: str, group: list[tuple[Row, int]], *given: object) -> int:
        for row, seed in group:
            write_result(what, row, seed, plan, {"of": row.name})
            deadline = time.monotonic() + 10
            while not any(f": {row.name}, seed {seed}: done" in line for line in said) and time.monotonic() < deadline:
                time.sleep(0.05)
            said.append(f"{row.name} went on")
        return 0

    monkeypatch.setattr(run, "_child", measured)
    display = Display(quiet=True)
    monkeypatch.setattr(display, "say", said.append)
    failed = run._measure("speed", [[(row, 1) for row in rows]], plan, Path("plan.json"), 1, display)
    assert failed == {}
    assert said == ["speed: cho, seed 1: done", "cho went on", "speed: bahdanau, seed 1: done", "bahdanau went on"]


def test_without_matplotlib_there_are_tables_and_a_word_on_the_figures(
    place: Path, first: Done, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    out = place / "undrawn"
    done = command(*arguments(place, "cho"), "--out", out, "--no-speed")
    assert done.status == 0, done.err
    first_word, last_word = "there will be no figures, for matplotlib is not installed", "figures need matplotlib"
    assert -1 < done.err.find(first_word) < done.err.find("quality:") < done.err.find(last_word)
    assert "| cho |" in done.out
    assert not list(out.glob("figures/*"))
    monkeypatch.undo()
    again = command(*arguments(place, "cho"), "--out", out, "--no-speed")
    assert "quality: 1 of 1 are measured already" in again.err
    assert (out / "index.html").read_text().count("<svg") > 0


def _at_work_in(folder: Path) -> list[Path]:
    return [process for process in Path("/proc").glob("[0-9]*") if str(folder) in _command_line(process)]


def _command_line(process: Path) -> str:
    try:
        return (process / "cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"data": ("a", "b")}, "--test is missing.*those of --valid are enough.*held out of --data would not do"),
        ({"test": ("a", "b")}, "--data is missing"),
        ({"gold": "links"}, "--gold-text"),
        ({"shown": 100_000}, "--sentence 100000"),
    ],
)
def test_what_would_fail_after_training_is_refused_before(plan: dict, message: str) -> None:
    with pytest.raises(SaccadeError, match=message):
        Plan(out="out", **plan).check()


def test_what_can_be_read_only_once_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("-", str(tmp_path / "pipe")):
        with pytest.raises(SaccadeError, match="can be read only once, and every row reads it"):
            Plan(out="out", data=("a", "b"), test=(name, "b")).check()


def test_a_test_set_without_lines_is_refused_as_such(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    empty = (str(tmp_path / "empty"),) * 2
    with pytest.raises(SaccadeError, match="empty has no lines"):
        Plan(out="out", data=("a", "b"), test=empty).check()
    (tmp_path / "empty").write_text("\n \n")
    with pytest.raises(SaccadeError, match="empty has no lines, or blank ones"):
        Plan(out="out", data=("a", "b"), test=empty).check()


@pytest.mark.parametrize(
    ("links", "message"),
    [
        ("0-0\n", "has the links of 1 sentences, the text 2"),
        ("0:0\n\n", "'0:0' is not a link"),
        ("0-0\n0-1\n", "line 2: 0-1 links words that are not there, of 1 and 1; give the sentences that were linked"),
    ],
)
def test_links_that_do_not_fit_their_sentences_are_refused_before(
    links: str, message: str, place: Path, tmp_path: Path
) -> None:
    (tmp_path / "gold").write_text(links)
    sentences = tuple(str(place / f"gold.{side}") for side in ("en", "de"))
    with pytest.raises(SaccadeError, match=message):
        Plan(out="out", gold=str(tmp_path / "gold"), gold_text=sentences).check()


def test_the_help_promises_no_test_set_that_is_refused(command: Command) -> None:
    said = " ".join(re.sub(r"[│╭╮╰╯─]", " ", command("compare", "--help").out).split())
    assert "--data" in said
    assert "Default: --valid" not in said
    assert "one is needed" in said


def test_rows_are_recipes_or_folders_with_names_of_their_own(
    tmp_path: Path, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SaccadeError, match="no such recipe"):
        rows_of([tmp_path / "none.yaml"])
    with pytest.raises(SaccadeError, match=r"without config\.yaml"):
        rows_of([tmp_path])
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "config.yaml").write_text("model: {}\n")
    with pytest.raises(SaccadeError, match=r"has no model\.safetensors"):
        rows_of([tmp_path / "begun"])
    monkeypatch.chdir(trained)
    assert [row.name for row in rows_of([Path()])] == [trained.name]
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "same.yaml").write_text("model: {}\n")
    with pytest.raises(SaccadeError, match="another row named same"):
        rows_of([tmp_path / "a" / "same.yaml", tmp_path / "b" / "same.yaml"])


def test_a_test_set_of_one_sentence_has_scores_and_no_significance(place: Path, first: Done) -> None:
    rows = rows_of([place / "cho.yaml", place / "bahdanau.yaml"])
    plan = Plan.load(place / "out" / "plan.json")
    for row in rows:
        measured = read_result("quality", row, 1, plan)
        assert measured is not None
        out = place / "single" / row.name / "seed-1.results"
        out.mkdir(parents=True)
        (out / "translations.txt").write_text("one line\n")
    files = tuple(str(place / f"single.{side}") for side in ("en", "de"))
    for file in files:
        Path(file).write_text("seventeen\n")
    single = replace(plan, out=str(place / "single"), data=files, test=files, seeds=(1,))
    for row in rows:
        write_result("quality", row, 1, single, measured)
    assert [line.p_value for line in lines_of(rows, single, {}, None)] == [None, None]


def test_a_classifier_is_judged_by_accuracy_beside_what_writes_sentences(place: Path, command: Command) -> None:
    """On the built-in corpus, whose targets are taken for labels."""
    (place / "labels.yaml").write_text(BASE.replace("rnn, wiring: cho", "classifier"))
    (place / "more-labels.yaml").write_text("extends: labels.yaml\nmodel: {hops: 3}\n")
    told = [*arguments(place, "labels", "more-labels"), "--no-speed", "--out", place / "labelled"]
    done = command(*told)
    assert done.status == 0, done.err
    assert done.out.startswith("| row | parameters | accuracy % | p (row above) |")
    assert "paired bootstrap on accuracy" in done.out
    row = json.loads((place / "labelled" / "table.json").read_text())["rows"][1]
    assert len(row["accuracy"]) == 1
    assert row["bleu"] == row["chrf"] == []
    assert row["p_value"] is not None
    assert row["quality"] is None
    assert "accuracy" in row["lengths"][0]
    assert "Accuracy against source length" in (place / "labelled" / "index.html").read_text()
    both = command(*told, place / "cho.yaml")
    assert "| BLEU | chrF | accuracy % |" in both.out
    assert "paired bootstrap on BLEU or accuracy" in both.out
    rows = json.loads((place / "labelled" / "table.json").read_text())["rows"]
    assert rows[2]["p_value"] is None, "a score of sentences beside one of labels"


def test_buckets_of_length_hold_every_sentence_once() -> None:
    sources = [" ".join(["w"] * n) for n in range(1, 31)]
    edges = length_edges(sources)
    found = by_length({1: sources, 2: sources}, sources, sources, edges, "none")
    assert sum(bucket["sentences"] for bucket in found) == 30
    assert [bucket["words"] for bucket in found] == sorted(bucket["words"] for bucket in found)
    assert found[-1]["bleu"] == pytest.approx(100)


def test_a_spread_is_given_where_there_are_seeds() -> None:
    assert spread([]) == "–"
    assert spread([40.0]) == "40.00"
    assert spread([39.0, 41.0]) == "40.00 ± 1.41"
    assert "failed: no memory" in to_markdown([Line("x", failed="no memory")], Plan(out="o"))


def test_a_bar_in_a_name_or_a_failure_stays_in_its_cell_and_without_scores_no_signature_is_told() -> None:
    head, rule, row, *notes = to_markdown([Line("a|b", failed="x | y")], Plan(out="o")).splitlines()
    assert len(re.findall(r"(?<!\\)\|", row)) == head.count("|") == rule.count("|")
    assert r"a\|b" in row
    assert "Signatures" not in " ".join(notes)


def test_words_and_names_are_drawn_as_they_are_written(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    """A dollar sign would begin a formula, and a font may lack a letter."""
    words = [r"$\frac$", "5-$10-$", "日本"]
    drawn = {"source": words, "target": words, "weights": [[0.1, 0.2, 0.7]] * 3}
    lines = [Line(r"a$\frac$", lengths=[{"words": 3.0, "bleu": 5.0}], drawn=drawn)]
    paths = draw_figures(lines, Plan(out=str(tmp_path)), tmp_path).values()
    texts = ["".join(ElementTree.parse(path).getroot().itertext()) for path in paths]
    assert all(r"a$\frac$" in text for text in texts)
    assert all(word in texts[-1] for word in words)
    assert not recwarn.list
