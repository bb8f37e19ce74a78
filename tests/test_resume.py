"""A run that is stopped, however it is stopped, and started again is the run that was not."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Start
from safetensors.torch import load, load_file
from torch import Tensor, nn

import saccade
from saccade import SaccadeError, api
from saccade.config import Config
from saccade.data.prepare import fingerprint, prepare
from saccade.display import Display
from saccade.folder import read_record
from saccade.training import checkpoint
from saccade.training.run import train

KILLS, IN_PREPARATION, AT_THE_END = 20, 4, 2
LONG = ["training.max_steps=90", "training.checkpoint_every=3", "training.validate_every=9", "training.log_every=1"]
LONG += ["training.batch_tokens=256", "training.patience=0", "training.keep=3", "training.average=3"]
# A rate so high that the weights swing about: the mean of the last is better than any of them, and is chosen.
SWINGING = ["training.learning_rate=1", "training.schedule=constant", "training.warmup_steps=0"]
SHORT = ["training.max_steps=10", "training.validate_every=5", "training.checkpoint_every=2", "training.log_every=1"]
SHORT += ["training.batch_tokens=256", "training.average=1"]
RNN = ["model.family=rnn", "model.embedding=12", "model.width=16"]


def test_a_run_killed_twenty_times_ends_with_the_very_weights_of_the_undisturbed_run(
    tmp_path: Path, tiny: list[str], start: Start
) -> None:
    whole, killed = tmp_path / "undisturbed", tmp_path / "killed"
    settings = [*tiny, *LONG, *SWINGING]
    undisturbed = start(api.train, *settings, out=whole, quiet=True)
    chance = random.Random(7)
    hits = 0
    with reading(killed) as reader:
        for number in range(KILLS):
            run = start(api.train, *settings, out=killed, quiet=True)
            if number < IN_PREPARATION:
                wait_until(lambda: (killed / "resume" / "data").exists(), run)
                time.sleep(chance.uniform(0.0, 0.15))
            elif number >= KILLS - AT_THE_END:
                wait_until(lambda: (killed / "resume" / "step-00000090").exists(), run)
                time.sleep(chance.uniform(0.0, 0.1))
            else:
                wait_for_steps(chance.randint(1, 5), killed, run)
                time.sleep(chance.uniform(0.0, 0.03))
            hits += run.is_alive()
            run.kill()
            run.join()
            assert run.exitcode in (0, -signal.SIGKILL), "the killed run could not go on"
        last = start(api.train, *settings, out=killed, quiet=True)
        last.join()
    undisturbed.join()
    assert (undisturbed.exitcode, last.exitcode) == (0, 0)
    assert hits >= KILLS - 3, f"only {hits} of {KILLS} kills met a run that was alive"
    assert reader.broken == []
    assert reader.times > KILLS
    assert_same_run(whole, killed)
    assert read_record(whole)["chosen"] == "mean of the last 3 checkpoints"
    assert list(killed.rglob("*.partial")) == [], "a killed writer's files were not swept up"
    assert log_steps(killed) == log_steps(whole)
    assert len(log_steps(killed)) == len(set(log_steps(killed)))


def test_a_checkpoint_killed_at_any_file_operation_is_there_whole_or_not_at_all(tmp_path: Path, start: Start) -> None:
    operations = 0
    for operations in range(1, 100):
        folder = tmp_path / str(operations)
        run = start(checkpoint_three_times, folder, operations)
        run.join()
        for place in checkpoint.checkpoints(folder):
            files = {path.name for path in place.iterdir()}
            assert files >= {"model.safetensors", "state.json"}, f"{place.name} after {operations - 1} operations"
        place = checkpoint.latest(folder)
        model, optimizer = small_model()
        if place is not None:
            assert place == checkpoint.checkpoints(folder)[-1]
            assert checkpoint.load_checkpoint(place, model, optimizer) == {"step": int(place.name[5:])}
        if run.exitcode == 0:
            break
        assert run.exitcode == -signal.SIGKILL
    assert operations > 20


def test_preparing_killed_at_any_file_operation_goes_on_to_the_same_stores(
    tmp_path: Path, tiny: list[str], start: Start
) -> None:
    config = Config.load(None, [*tiny, "data.builtin_pairs=60", "data.valid_pairs=5", "tokenizer.joint=false"])
    whole = prepare(config, tmp_path / "whole", Display(quiet=True))
    operations = 0
    for operations in range(1, 100, 2):
        folder = tmp_path / str(operations)
        run = start(prepare_until, config, folder, operations)
        run.join()
        if run.exitcode == 0:
            break
        assert run.exitcode == -signal.SIGKILL
        again = prepare(config, folder, Display(quiet=True))
        assert again.config == whole.config
        for name in ("tokens.bin", "source.bin", "target.bin"):
            assert (folder / "train" / name).read_bytes() == (tmp_path / "whole" / "train" / name).read_bytes()
            assert (folder / "valid" / name).read_bytes() == (tmp_path / "whole" / "valid" / name).read_bytes()
    assert operations > 20


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param([], id="transformer"),
        pytest.param(["training.accumulate=2", "training.batch_tokens=128"], id="accumulated batches"),
        pytest.param(["training.subword_dropout=0.1"], id="subword dropout"),
        pytest.param(["model.norm=post", "training.schedule=cosine", "training.weight_decay=0.1"], id="cosine, decay"),
        pytest.param([*RNN, "model.wiring=bahdanau"], id="rnn with attention"),
        pytest.param([*RNN, "model.wiring=sutskever", "model.cell=lstm"], id="lstm"),
        pytest.param([*RNN, "model.wiring=rctm"], id="convolutions and rnn"),
        pytest.param(["model.family=lm", "model.width=18", "data.monolingual=true"], id="language model"),
    ],
)
def test_a_run_interrupted_in_the_middle_of_an_epoch_goes_on_bit_for_bit(
    tmp_path: Path, tiny: list[str], settings: list[str]
) -> None:
    if any(setting.startswith("model.family=") for setting in settings):
        tiny = [setting for setting in tiny if not setting.startswith("model.")]
    config = Config.load(None, [*tiny, *SHORT, *settings])
    train(config, tmp_path / "whole", display=Display(quiet=True))
    stopped = tmp_path / "stopped"
    with pytest.raises(KeyboardInterrupt):
        train(config, stopped, display=Interrupting(at=7))
    place = checkpoint.latest(stopped / "resume")
    assert place is not None
    state = json.loads((place / "state.json").read_text())
    assert (state["step"], state["epoch"]) == (7, 0)
    assert state["batch"] == 7 * config.training.accumulate
    train(config, stopped, display=Display(quiet=True))
    assert_same_run(tmp_path / "whole", stopped)


def test_a_run_stopped_by_max_steps_goes_on_when_it_is_raised(tmp_path: Path, tiny: list[str]) -> None:
    settings = [*tiny, *SHORT, "training.warmup_steps=3"]
    api.train(*settings, out=tmp_path / "whole", quiet=True)
    api.train(*settings, "training.max_steps=5", out=tmp_path / "stopped", quiet=True)
    assert step_of(tmp_path / "stopped") == 5
    api.train(*settings, out=tmp_path / "stopped", quiet=True)
    assert_same_run(tmp_path / "whole", tmp_path / "stopped")


def test_raising_max_steps_is_allowed_where_everything_else_was_chosen(tmp_path: Path, tiny: list[str]) -> None:
    api.train(*tiny, "training.max_steps=4", out=tmp_path / "run", quiet=True)
    api.train(*tiny, "training.max_steps=25", out=tmp_path / "run", quiet=True)
    assert step_of(tmp_path / "run") == 25
    assert Config.load(tmp_path / "run" / "config.yaml").training.max_steps == 25, "the folder says what was done"


def test_an_interruption_does_not_change_which_checkpoints_are_averaged(tmp_path: Path, tiny: list[str]) -> None:
    config = Config.load(None, [*tiny, *SHORT, *SWINGING, "training.average=3", "training.keep=3"])
    train(config, tmp_path / "whole", display=Display(quiet=True))
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "stopped", display=Interrupting(at=7))
    train(config, tmp_path / "stopped", display=Display(quiet=True))
    assert read_record(tmp_path / "whole")["chosen"] == "mean of the last 3 checkpoints"
    assert_same_run(tmp_path / "whole", tmp_path / "stopped")


def test_control_c_saves_at_the_end_of_the_step_and_the_same_command_goes_on(tmp_path: Path, tiny: list[str]) -> None:
    folder = tmp_path / "run"
    line = [sys.executable, "-m", "saccade", "train", *tiny, *LONG, "training.max_steps=100000", "--out", str(folder)]
    run = subprocess.Popen(line, stderr=subprocess.PIPE, text=True)
    try:
        wait_for_steps(4, folder, run)
        run.send_signal(signal.SIGINT)
        _, said = run.communicate(timeout=20)
    finally:
        run.kill()
    assert run.returncode == 130
    stopped_at = step_of(folder)
    assert f"stopped at step {stopped_at:,}; the same command goes on from here" in said
    assert "Traceback" not in said
    assert log_steps(folder)[-1][0] == stopped_at, "the step that was under way is the one that was saved"

    api.train(
        *tiny, *LONG, f"training.max_steps={stopped_at + 2}", "training.warmup_steps=4000", out=folder, quiet=True
    )
    assert step_of(folder) == stopped_at + 2
    assert [step for step, kind in log_steps(folder) if kind == "train"] == list(range(1, stopped_at + 3))


def test_an_interruption_before_training_begins_leaves_nothing_in_the_way(tmp_path: Path, tiny: list[str]) -> None:
    class Impatient(Display):
        def say(self, line: str) -> None:
            if line.startswith("kept"):
                raise KeyboardInterrupt

    config = Config.load(None, [*tiny, *SHORT])
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "run", display=Impatient())
    train(config, tmp_path / "run", display=Display(quiet=True))
    assert step_of(tmp_path / "run") == 10


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ("training.seed=2", r"training\.seed=1, now it is 2"),
        ("training.label_smoothing=0.2", r"training\.label_smoothing=0\.1, now it is 0\.2"),
        ("training.batch_tokens=300", r"training\.batch_tokens=256, now it is 300"),
        ("training.accumulate=2", r"training\.accumulate=1, now it is 2"),
        ("model.dropout=0.25", r"model\.dropout=0\.3, now it is 0\.25"),
        ("model.feed_forward=48", r"model\.feed_forward=64, now it is 48"),
        ("model.norm=post", r"model\.norm='pre', now it is 'post'"),
        ("data.seed=2", r"data\.seed=1, now it is 2"),
        ("data.builtin_pairs=300", r"data\.builtin_pairs=400, now it is 300"),
        ("tokenizer.vocabulary=320", r"tokenizer\.vocabulary=400, now it is 320"),
        ("data.cleaning.drop_copies=false", r"data\.cleaning.*drop_copies.*True.*False"),
    ],
)
def test_going_on_with_another_setting_is_refused_by_name_and_both_values(
    stopped: Path, tiny: list[str], changed: str, message: str
) -> None:
    with pytest.raises(SaccadeError, match=message) as refused:
        api.train(*tiny, *SHORT, changed, out=stopped, quiet=True)
    assert "--restart" in str(refused.value)
    assert "--out" in str(refused.value)
    assert step_of(stopped) == 4, "a refusal changes nothing"


def test_a_finished_run_is_not_trained_again_by_accident(tmp_path: Path, tiny: list[str]) -> None:
    api.train(*tiny, *SHORT, "training.max_steps=2", out=tmp_path / "run", quiet=True)
    before = (tmp_path / "run" / "model.safetensors").read_bytes()
    with pytest.raises(
        SaccadeError, match=r"is trained already; choose another --out, go on with a larger training\.max"
    ):
        api.train(*tiny, out=tmp_path / "run", quiet=True)
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == before


def test_restart_throws_away_what_was_there(tmp_path: Path, tiny: list[str]) -> None:
    for seed in (1, 2):
        settings = [*tiny, *SHORT, "training.max_steps=2", f"training.seed={seed}"]
        api.train(*settings, out=tmp_path / "again", quiet=True, restart=True)
    api.train(*settings, out=tmp_path / "afresh", quiet=True)
    assert_same_run(tmp_path / "afresh", tmp_path / "again")


def test_minutes_that_are_over_before_the_first_validation_still_leave_a_folder_that_translates(
    tmp_path: Path, tiny: list[str]
) -> None:
    minutes = ["training.max_steps=100000", "training.validate_every=1000", "training.max_minutes=0.0001"]
    api.train(*tiny, *minutes, out=tmp_path / "run", quiet=True)
    assert read_record(tmp_path / "run")["ended"] == "0.0001 minutes are over"
    assert len(saccade.load(tmp_path / "run").translate(["one", "two"])) == 2


def test_the_log_forgets_steps_that_are_taken_again_and_the_line_that_was_cut(tmp_path: Path, tiny: list[str]) -> None:
    config = Config.load(None, [*tiny, *SHORT])
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path, display=Interrupting(at=5))
    with open(tmp_path / "log.jsonl", "a", encoding="utf-8") as log:
        log.write('{"step": 6, "loss": 1.0}\n{"step": 7, "lo')
    train(config, tmp_path, display=Display(quiet=True))
    steps = log_steps(tmp_path)
    assert [step for step, kind in steps if kind == "train"] == list(range(1, 11))
    assert [step for step, kind in steps if kind == "valid"] == [5, 10]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory, tiny: list[str]) -> Path:
    """A run that was interrupted at step 4."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.raises(KeyboardInterrupt):
        train(Config.load(None, [*tiny, *SHORT]), folder, display=Interrupting(at=4))
    return folder


class Interrupting(Display):
    """Presses Control-C when a step is done."""

    def __init__(self, at: int) -> None:
        super().__init__(quiet=True)
        self.at = at

    @contextmanager
    def training(self, total: int, done: int) -> Iterator[Callable[[int, str], None]]:
        def watch(step: int, status: str) -> None:
            if step == self.at:
                signal.raise_signal(signal.SIGINT)

        yield watch


def step_of(folder: Path) -> int:
    place = checkpoint.latest(folder / "resume")
    assert place is not None
    return int(place.name.removeprefix("step-"))


def log_steps(folder: Path) -> list[tuple[int, str]]:
    """What each line of the log is about; a line that is not JSON fails."""
    rows = [json.loads(line) for line in (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    return [(row["step"], "valid" if "valid_loss" in row else "train") for row in rows]


def assert_same_run(one: Path, other: Path) -> None:
    """The same weights, and a last checkpoint from which the same steps would follow."""
    assert (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()
    last, others_last = checkpoint.latest(one / "resume"), checkpoint.latest(other / "resume")
    assert last is not None
    assert others_last is not None
    assert last.name == others_last.name
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert_equal_tensors(load_file(last / name), load_file(others_last / name))
    states = [json.loads((place / "state.json").read_text()) for place in (last, others_last)]
    for state in states:
        del state["seconds"]
    assert states[0] == states[1]


def assert_equal_tensors(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name


def wait_until(true: Callable[[], bool], run: Any) -> None:
    deadline = time.monotonic() + 30
    while not true() and ended(run) is None:
        assert time.monotonic() < deadline, "the run did not get there in 30 seconds"
        time.sleep(0.002)


def wait_for_steps(steps: int, folder: Path, run: Any) -> None:
    """Until the run has logged so many steps; it cuts off the log when it goes on, so its start is waited for first."""
    log = folder / "log.jsonl"
    began = time.time()
    wait_until(lambda: log.exists() and log.stat().st_mtime >= began and log.read_bytes().count(b"\n") > 0, run)
    already = log.read_bytes().count(b"\n") if log.exists() else 0
    wait_until(lambda: log.read_bytes().count(b"\n") >= already + steps, run)


def ended(run: Any) -> int | None:
    return run.exitcode if isinstance(run, BaseProcess) else run.poll()


@dataclass
class Reader:
    """How often somebody loaded what was there, and what was broken then."""

    times: int = 0
    broken: list[str] = field(default_factory=list)


@contextmanager
def reading(folder: Path) -> Iterator[Reader]:
    """Somebody who loads what is in the folder, over and over, as long as it lasts."""
    found = Reader()
    enough = threading.Event()

    def read() -> None:
        while not enough.is_set():
            try:
                found.times += read_once(folder)
            except Exception as error:
                found.broken.append(f"{type(error).__name__}: {error}")
            time.sleep(0.01)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield found
    finally:
        enough.set()
        thread.join()


def read_once(folder: Path) -> bool:
    """Load all there is; False if there is no model yet."""
    there = (folder / "model.safetensors").exists()
    if there:
        saccade.load(folder)
    for place in checkpoint.checkpoints(folder / "resume"):
        for name in ("model.safetensors", "state.json", "optimizer.safetensors"):
            try:
                read_whole(place / name)
            except FileNotFoundError:
                # Old checkpoints go, and the optimizer's state goes first: at once, never a file at a time.
                assert name == "optimizer.safetensors" or not place.exists(), f"{place.name} is there without {name}"
    return there


def read_whole(path: Path) -> None:
    if path.suffix == ".json":
        assert json.loads(path.read_text(encoding="utf-8"))["step"] > 0
        return
    # Opened once: a file that is removed while it is read is still read whole.
    assert load(path.read_bytes())


def die_before_operation(number: int) -> None:
    """Kill this very process, as `kill -9` would, just before it changes the file system for the `number`th time."""
    left = number

    def count(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal left
        writes = event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+")
        if writes or event in ("os.mkdir", "os.rename", "os.remove", "os.rmdir"):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)


def small_model() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    return model, optimizer


def checkpoint_three_times(folder: Path, operations: int) -> None:
    """As a run does it, keeping two: the third takes the first one's place."""
    model, optimizer = small_model()
    die_before_operation(operations)
    for step in (1, 2, 3):
        model(torch.ones(3)).sum().backward()
        optimizer.step()
        checkpoint.save_checkpoint(folder, step, model, optimizer, {"step": step})
        checkpoint.prune(folder, keep=2)


def prepare_until(config: Config, folder: Path, operations: int) -> None:
    die_before_operation(operations)
    with contextlib.suppress(KeyboardInterrupt):
        prepare(config, folder, Display(quiet=True))


def test_two_runs_do_not_train_in_one_folder(tmp_path: Path, tiny: list[str], start: Start) -> None:
    folder = tmp_path / "run"
    first = start(api.train, *tiny, *LONG, "training.max_steps=100000", out=folder, quiet=True)
    wait_until(lambda: (folder / "resume" / "log.jsonl").exists() or any(folder.glob("resume/step-*")), first)
    with pytest.raises(SaccadeError, match=rf"run: process {first.pid} is at work there; .* choose another --out"):
        api.train(*tiny, *LONG, "training.max_steps=100000", out=folder, quiet=True)
    first.kill()
    first.join()
    again = start(api.train, *tiny, *LONG, out=folder, restart=True, quiet=True)  # a killed run is in nobody's way
    again.join()
    assert again.exitcode == 0


def files_in(folder: Path) -> list[Path]:
    """The sides of a small corpus."""
    made = [folder / "train.de", folder / "train.en"]
    for path, words in zip(made, (("eins", "zwei", "drei"), ("one", "two", "three")), strict=True):
        path.write_text("".join(f"{words[i % 3]} {words[i // 3 % 3]} {i}\n" for i in range(60)), encoding="utf-8")
    return made


def test_a_corpus_that_was_copied_or_touched_is_the_same_and_another_is_refused_by_name(tmp_path, tiny, command):
    files = files_in(tmp_path)
    run = ["train", *files, *tiny, *SHORT, "--out", tmp_path / "run"]
    assert command(*run).status == 0
    os.utime(files[0], ns=(1, 1))
    again = command(*run, "training.max_steps=12")
    assert again.status == 0, again.err
    held = files[1].read_text(encoding="utf-8")
    files[1].write_text(held.replace("one", "two"), encoding="utf-8")  # as long as before
    refused = command(*run, "training.max_steps=14")
    assert refused.status == 2
    assert f"error: {files[1]}: does not hold what it held when {tmp_path / 'run'} was prepared from it" in refused.err
    files[1].write_text(held, encoding="utf-8")
    assert command(*run, "training.max_steps=14").status == 0


def test_a_file_that_came_or_went_among_those_of_a_pattern_is_named(tmp_path, tiny, command):
    for part in "ab":
        both = zip(*(path.read_text(encoding="utf-8").splitlines() for path in files_in(tmp_path)), strict=True)
        (tmp_path / f"{part}.tsv").write_text("".join(f"{s}\t{t}\n" for s, t in both), encoding="utf-8")
    run = ["train", tmp_path / "*.tsv", *tiny, *SHORT, "--out", tmp_path / "run"]
    assert command(*run).status == 0
    (tmp_path / "b.tsv").rename(tmp_path / "c.tsv")
    come = command(*run, "training.max_steps=12")
    assert (come.status, f"c.tsv: was not there when {tmp_path / 'run'} was prepared; take it" in come.err) == (2, True)
    (tmp_path / "c.tsv").unlink()
    gone = command(*run, "training.max_steps=12")
    assert (gone.status, "b.tsv: is gone, which was there when" in gone.err) == (2, True), gone.err


def test_a_run_prepared_before_what_files_hold_was_kept_goes_on(tmp_path, tiny, command):
    files = files_in(tmp_path)
    run = ["train", *files, *tiny, *SHORT, "--out", tmp_path / "run"]
    assert command(*run).status == 0
    record = tmp_path / "run" / "resume" / "data" / "prepared.json"
    known = json.loads(record.read_text(encoding="utf-8"))
    del known["files"]
    marks: list[str] = []

    def noted(config: Config, tokenizers: Any, states: bool = False) -> str:
        marks.append(fingerprint(config, tokenizers, states=states))
        return marks[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("saccade.data.prepare.fingerprint", noted)
        record.write_text(json.dumps(known), encoding="utf-8")
        assert command(*run, "training.max_steps=12").status == 2
    known["fingerprint"] = marks[-1]
    record.write_text(json.dumps(known), encoding="utf-8")
    assert command(*run, "training.max_steps=12").status == 0
    os.utime(files[0], ns=(1, 1))
    assert command(*run, "training.max_steps=14").status == 2
