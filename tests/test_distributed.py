"""Many processes are one run: the same loss, gradients and weights, whoever dies, freezes or joins."""

import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from conftest import Command, Start
from safetensors.torch import load_file
from torch import Tensor

import saccade
from saccade import SaccadeError, api
from saccade.config import TrainingConfig
from saccade.data.batching import Batcher
from saccade.distributed import launch as launching
from saccade.distributed.launch import VERDICT, work
from saccade.distributed.ranks import Ranks
from saccade.distributed.watchdog import HUNG, Watchdog
from saccade.training import checkpoint

# Adam divides by the root of the second moment: where a gradient is nearly 0, its ε decides what rounding does.
SAME = ("model.dropout=0", "training.adam_epsilon=0.001", "training.learning_rate=0.01", "training.warmup_steps=2")
SHORT = ("training.max_steps=6", "training.validate_every=3", "training.log_every=1", "training.average=1")
SHORT += ("training.batch_tokens=256", "training.accumulate=2", "data.builtin_pairs=300", "training.hang_timeout=60")
FAMILIES = {
    "transformer": (),
    "fewer rows than ranks": ("training.batch_tokens=24",),
    "rnn": ("model.family=rnn", "model.width=16", "model.embedding=12"),
    "conv": ("model.family=conv", "model.width=16", "model.embedding=12", "model.size=tiny"),
}


def settings_of(family: str, tiny: list[str], *more: str) -> list[str]:
    kept = (
        tiny
        if family in ("transformer", "fewer rows than ranks")
        else [setting for setting in tiny if not setting.startswith("model.")]
    )
    return [*kept, *SAME, *SHORT, *FAMILIES[family], *more]


@pytest.mark.parametrize("family", FAMILIES)
def test_two_ranks_give_the_losses_gradients_and_weights_of_one(
    family: str, tmp_path: Path, tiny: list[str], start: Start
) -> None:
    settings = settings_of(family, tiny)
    ranks = start_ranks(start, 2, *settings, out=tmp_path / "two")
    api.train(*settings, out=tmp_path / "one", quiet=True)
    assert ends(ranks) == [0, 0]
    assert_like_runs(tmp_path / "one", tmp_path / "two")


@pytest.mark.parametrize("family", ["transformer", "rnn"])
def test_a_run_goes_on_with_another_number_of_ranks_and_weights_shared_out_or_not(
    family: str, tmp_path: Path, tiny: list[str], start: Start
) -> None:
    few_rows = ("training.batch_tokens=24",) if family == "rnn" else ()
    settings = settings_of(family, tiny, "training.validate_every=2", *few_rows)
    api.train(*settings, out=tmp_path / "whole", quiet=True)
    moved = tmp_path / "moved"
    api.train(*settings, "training.max_steps=2", out=moved, quiet=True)
    (moved / "resume" / "pieces.json").write_text('{"pieces": 4}')  # as if memory had run out, which changes nothing
    sharded = ("training.max_steps=4", "training.sharding=fsdp", "training.average=2")
    assert ends(start_ranks(start, 2, *settings, *sharded, out=moved)) == [0, 0], said(moved, 0) + said(moved, 1)
    assert "memory: a batch goes in 4 pieces" in said(moved, 0)
    place = checkpoint.latest(moved / "resume")
    assert place is not None
    shards = sorted((place / "optimizer").iterdir())
    assert len(shards) == 2, "each rank writes its own part"
    assert {path.suffix for path in place.rglob("*") if path.is_file()} == {".safetensors", ".json"}, "no pickle"
    sizes = [sum(tensor.numel() for tensor in load_file(path).values()) for path in shards]
    assert max(sizes) < 0.7 * sum(sizes)
    assert len(saccade.load(moved).translate(["one"])) == 1
    api.train(*settings, out=moved, quiet=True)
    assert_like_runs(tmp_path / "whole", moved)


def test_fine_tuning_with_weights_shared_out_goes_on_with_the_old_moments(
    tmp_path: Path, tiny: list[str], start: Start
) -> None:
    settings = settings_of("transformer", tiny)
    api.train(*settings, out=tmp_path / "old", quiet=True)
    tuned = (*settings, "tokenizer.new_pieces=10", "data.source=fr", "data.old_valid_pairs=0")
    sharded = ("training.sharding=fsdp", "training.keep_moments=true")
    ranks = start_ranks(start, 2, *tuned, *sharded, out=tmp_path / "two", start_from=tmp_path / "old")
    assert ends(ranks) == [0, 0], said(tmp_path / "two", 0)
    assert f"Adam's moments: from {tmp_path / 'old'}" in said(tmp_path / "two", 0)
    api.train(*tuned, out=tmp_path / "one", start_from=tmp_path / "old", quiet=True)
    assert_like_runs(tmp_path / "one", tmp_path / "two")


def test_a_worker_that_is_killed_is_replaced_and_nothing_is_lost(tmp_path: Path, tiny: list[str], start: Start) -> None:
    many = ["training.max_steps=40", "training.checkpoint_every=4", "training.validate_every=20"]
    settings = [*tiny, *SHORT, *many]  # with dropout: random numbers must come back as well
    undisturbed = start_ranks(start, 2, *settings, out=tmp_path / "whole")
    assert ends(undisturbed) == [0, 0]
    killed = tmp_path / "killed"
    line = [sys.executable, "-m", "saccade", "train", *settings, "--devices", "2", "--restart", "--out", str(killed)]
    run = subprocess.Popen(line, stderr=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: steps_of(killed) >= 10, run)
        workers = {process.environ()["RANK"]: process for process in psutil.Process(run.pid).children()}
        workers["1"].kill()
        _, words = run.communicate(timeout=120)
    finally:
        run.kill()
    assert run.returncode == 0, words
    assert "resuming: step" in words
    assert words.count("ready after") == 1, "one rank speaks"
    assert [row["step"] for row in rows_of(killed) if "loss" in row] == list(range(1, 41))
    for name in ("model.safetensors", "resume/step-00000040/model.safetensors"):
        for weight, other in zip(
            load_file(tmp_path / "whole" / name).values(), load_file(killed / name).values(), strict=True
        ):
            assert torch.equal(weight, other)


def test_a_launcher_that_is_killed_leaves_nobody_at_work_and_nothing_is_lost(tmp_path: Path, tiny: list[str]) -> None:
    out = tmp_path / "run"
    settings = [*tiny, *SHORT, "training.max_steps=100000", "training.validate_every=50000"]
    line = [sys.executable, "-m", "saccade", "train", *settings, "--devices", "2", "--out", str(out)]
    run = subprocess.Popen(line, stderr=subprocess.DEVNULL)
    wait_for(lambda: steps_of(out) >= 10, run)
    workers = psutil.Process(run.pid).children()
    run.kill()
    run.wait()
    _, alive = psutil.wait_procs(workers, timeout=60)
    for process in alive:
        process.kill()
    assert not alive
    place = checkpoint.latest(out / "resume")
    assert place is not None
    assert checkpoint.read_progress(place)["step"] >= 10


@pytest.mark.parametrize("how", ["frozen", "stuck"])
def test_a_rank_that_hangs_is_named_with_its_place(how: str, tmp_path: Path, tiny: list[str], start: Start) -> None:
    out = tmp_path / "run"
    settings = [*tiny, *SHORT, "training.max_steps=100000", "training.validate_every=1000", "training.hang_timeout=8"]
    if how == "frozen":
        ranks = start_ranks(start, 2, *settings, out=out)
        wait_for(lambda: steps_of(out) >= 3, ranks[0])
        assert ranks[1].pid is not None
        os.kill(ranks[1].pid, signal.SIGSTOP)
    else:
        ranks = start_ranks(start, 2, *settings, out=out, target=as_stuck_rank)
    while all(rank.is_alive() for rank in ranks):  # whoever notices first ends, and the other hears of that
        time.sleep(0.01)
    for rank in ranks:
        rank.join(1)
        rank.kill()
        rank.join()
    assert HUNG in [rank.exitcode for rank in ranks]
    words = said(out, 0) + said(out, 1)
    if how == "frozen":
        assert re.search(r"rank 1 of 2 has given no sign of life for \d+ seconds.*it was last heard at: .+; ", words)
        assert re.search(r"rank 0 is at: step [\d,]+: ", words), "where the others wait for it"
    else:
        assert "furthest behind: rank 1 at: step 3: waiting for its batches" in words
        assert "waiting for them: rank 0 at: step 3: counting its tokens" in words
    assert "training.hang_timeout=8" in words


def test_a_signal_to_one_rank_stops_all_at_the_same_step(tmp_path: Path, tiny: list[str], start: Start) -> None:
    out = tmp_path / "run"
    ranks = start_ranks(start, 2, *tiny, *SHORT, "training.max_steps=100000", "training.validate_every=1000", out=out)
    wait_for(lambda: steps_of(out) >= 3, ranks[0])
    ranks[1].terminate()
    assert ends(ranks) == [130, 130]
    place = checkpoint.latest(out / "resume")
    assert place is not None
    last = rows_of(out)[-1]["step"]
    assert place.name == f"step-{last:08d}"
    assert f"stopped at step {last:,}; the same command goes on" in said(out, 0)
    assert "stopped" not in said(out, 1)


def test_what_is_refused_is_said_by_one_rank_and_not_tried_again(
    tmp_path: Path, tiny: list[str], start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    ranks = start_ranks(start, 2, *tiny, "data.train=[gone.en, gone.de]", out=out)
    assert ends(ranks) == [2, 2]
    assert "gone.en" in said(out, 0)
    assert said(out, 1) == ""
    monkeypatch.setenv(VERDICT, str(tmp_path / "verdict"))
    monkeypatch.setattr(sys, "argv", ["saccade", "train", "gone.en", "gone.de", "--out", str(out)])
    work()  # ends well, as far as torchrun can see
    assert (tmp_path / "verdict").read_text() == "2"


@pytest.mark.parametrize("what", ["a loss", "a file"])
def test_what_breaks_for_all_ranks_is_said_by_one(what: str, tmp_path: Path, tiny: list[str]) -> None:
    settings = [*tiny, *SHORT, "training.max_steps=60"]
    if what == "a loss":
        settings += ["training.learning_rate=1e30", "training.clip_norm=0", "training.schedule=constant"]
    else:
        lines = [f"{number} {word}\t{word} {number}\n".encode() for number in range(150) for word in ("one", "two")]
        for name in "ab":
            (tmp_path / f"{name}.tsv").write_bytes(b"".join([*lines, b"\xff\tbad\n"]))
        settings += [f"data.train=[{tmp_path}/a.tsv,{tmp_path}/b.tsv]", "data.stream=true", "data.stream_sample=100"]
    line = [sys.executable, "-m", "saccade", "train", *settings, "--devices", "2", "--out", str(tmp_path / "run")]
    ended = subprocess.run(line, capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == 2
    expected = "training broke at step" if what == "a loss" else "not UTF-8"
    assert ended.stderr.count("error: ") == ended.stderr.count(expected) == 1, ended.stderr
    assert "Traceback" not in ended.stderr


def test_the_rank_that_saw_numbers_break_says_which(start: Start, tmp_path: Path) -> None:
    ranks = start_ranks(start, 3, out=tmp_path / "run", target=as_witness)
    assert ends(ranks) == [0, 0, 0]
    assert [said(tmp_path / "run", rank) for rank in range(3)] == ["rank 1 saw it, '' saw it\n"] * 3


def test_a_disk_that_fills_up_is_said_once_and_not_tried_again(tmp_path: Path, tiny: list[str]) -> None:
    line = [sys.executable, "-m", "saccade", "train", *tiny, *SHORT, "--devices", "2", "--out", str(tmp_path / "run")]
    room = 200 << 10  # less than a checkpoint
    ended = subprocess.run(
        line,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (room, room)),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == 2
    assert ended.stderr.count("cannot be written: File too large; make room") == 1
    assert "Traceback" not in ended.stderr, "of who lost the first rank in the middle of a step"
    assert ended.stderr.count("step      3  validation loss") == 1, "one attempt"


def test_a_refusal_is_not_hidden_by_others_that_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Ranks(0, 2, 0, 2, Watchdog(None, 0, 2, 60.0))  # type: ignore[arg-type]

    def gone(facts: dict[str, Any]) -> dict[str, Any]:
        raise RuntimeError("Connection closed by peer")

    monkeypatch.setattr(world, "from_first", gone)
    with pytest.raises(SaccadeError, match="no such file"), world.first_alone("preparing the data"):
        raise SaccadeError("gone.en: there is no such file")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("training.average=0", "settings: training.average=0: input should be greater than or equal to 1"),
        ("training.device=cuda", r"2 processes on this machine .* none that torch can use; .* \(--devices"),
    ],
)
def test_a_launch_that_cannot_go_well_is_refused_in_a_line(
    setting: str, message: str, tmp_path: Path, tiny: list[str]
) -> None:
    given = [*tiny, setting, "--devices", "2", "--out", str(tmp_path / "run")]
    ended = subprocess.run(
        [sys.executable, "-m", "saccade", "train", *given],
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == 2
    assert re.fullmatch(f"error: {message}.*", ended.stderr.strip())
    assert not (tmp_path / "run").exists()


def test_under_torchrun_a_refused_setting_is_said_by_one_process(tmp_path: Path) -> None:
    line = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "saccade", "train"]
    line += ["--out", str(tmp_path / "run"), "model.widht=3"]
    ended = subprocess.run([sys.executable, *line], capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode != 0
    assert ended.stderr.count("error: settings: unknown setting model.widht") == 1


def test_what_the_first_process_does_not_refuse_is_said_by_who_does(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launching, "PATIENCE", 0.1)
    for name, value in {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    done = command("train", "model.widht=3")
    assert done.status == 2
    assert "unknown setting model.widht" in done.err


def as_stuck_rank(rank: int, *rest: Any, **keywords: Any) -> None:
    """Its data do not come after the second step."""
    whole = Batcher.stream

    def stream(self: Batcher, *start: Any) -> Iterator[Any]:
        for number, batch in enumerate(whole(self, *start)):
            if rank == 1 and number == 4:
                time.sleep(1000)
            yield batch

    Batcher.stream = stream  # type: ignore[assignment, method-assign]
    as_rank(rank, *rest, **keywords)


def as_witness(rank: int, size: int, port: int, out: Path) -> None:
    """Two of the ranks have seen something, then none has."""
    begin_rank(rank, size, port, out)
    world = Ranks.join(TrainingConfig())
    print(f"{world.any_word(f'rank {rank}' if rank else '')} saw it, {world.any_word('')!r} saw it", file=sys.stderr)
    world.close()
    world.leave()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return int(listener.getsockname()[1])


def begin_rank(rank: int, size: int, port: int, out: Path) -> None:
    """What torchrun does for each process: tell it by its environment who it is."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)}
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    os.dup2(os.open(out.parent / f"{out.name}-{rank}.err", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)


def as_rank(rank: int, size: int, port: int, *settings: str, out: Path, start_from: Path | None = None) -> None:
    begin_rank(rank, size, port, out)
    try:
        translator = api.train(*settings, out=out, start_from=start_from)
    except SaccadeError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    assert len(translator.translate(["one"])) == 1


def start_ranks(
    start: Start, size: int, *settings: str, out: Path, target: Callable[..., None] = as_rank, **more: Any
) -> list[BaseProcess]:
    port = free_port()
    return [start(target, rank, size, port, *settings, out=out, **more) for rank in range(size)]


def steps_of(folder: Path) -> int:
    log = folder / "log.jsonl"
    return log.read_bytes().count(b"\n") if log.exists() else 0


def wait_for(true: Callable[[], bool], run: Any) -> None:
    deadline = time.monotonic() + 120
    while not true():
        assert (run.exitcode if isinstance(run, BaseProcess) else run.poll()) is None, "it ended too soon"
        assert time.monotonic() < deadline, "it did not get there"
        time.sleep(0.01)


def ends(ranks: list[BaseProcess]) -> list[int | None]:
    for rank in ranks:
        rank.join(120)
    return [rank.exitcode for rank in ranks]


def said(out: Path, rank: int) -> str:
    return (out.parent / f"{out.name}-{rank}.err").read_text()


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def assert_like_runs(one: Path, other: Path) -> None:
    """The same steps, up to the order in which floats are added."""
    for row, others in zip(rows_of(one), rows_of(other), strict=True):
        for name in ("loss", "gradient_norm", "valid_loss", "target_tokens", "epoch"):
            assert (name in row) == (name in others)
            assert row.get(name, 0) == pytest.approx(others.get(name, 0), rel=1e-4), (row["step"], name)
    places = [checkpoint.latest(folder / "resume") for folder in (one, other)]
    assert places[0] is not None
    assert places[1] is not None
    assert places[0].name == places[1].name
    assert_close(load_file(places[0] / "model.safetensors"), load_file(places[1] / "model.safetensors"))
    assert_close(load_file(one / "model.safetensors"), load_file(other / "model.safetensors"))


def assert_close(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(
            one[name], other[name], rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )
