"""Before a run, and when memory is short: what is said is so, and a batch in pieces is the same batch."""

import ctypes
import json
import re
import resource
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch
from conftest import Command, Start
from safetensors.torch import load_file

from saccade import SaccadeError
from saccade.config import Config
from saccade.display import Display
from saccade.planning import Estimate
from saccade.training.memory import MicroBatches, is_out_of_memory
from saccade.training.run import train

M_MMAP_THRESHOLD, M_ARENA_MAX = -3, -8  # of glibc's malloc.h
# Feed-forward layers so wide that their activations are most of what there is.
WIDE = ("model.feed_forward=8192", "training.batch_tokens=2048", "training.max_steps=3", "training.average=1")
WIDE += ("model.dropout=0", "training.adam_epsilon=0.001", "training.log_every=1", "training.validate_every=3")
WIDE += ("training.learning_rate=0.001", "data.builtin_pairs=200")


class Limiting(Display):
    """Leaves this process so much more memory than it has, when the model has been built."""

    def __init__(self, log: Path, room: int) -> None:
        super().__init__(quiet=True)
        self.log, self.room = log, room

    def say(self, line: str) -> None:
        with open(self.log, "a", encoding="utf-8") as log:
            log.write(line + "\n")
        if line.startswith("estimate: "):
            limit = psutil.Process().memory_info().vms + self.room
            resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
        if line.startswith("done: "):  # training is over
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def train_with_limit(settings: list[str], out: Path, room: int) -> None:
    # So that freed tensors go back to the system at once, and address space is what is in use.
    for option, value in ((M_MMAP_THRESHOLD, 2**17), (M_ARENA_MAX, 1)):
        assert ctypes.CDLL(None).mallopt(option, value) == 1
    train(Config.load(None, settings), out, display=Limiting(out.with_suffix(".txt"), room))


def test_a_run_short_of_memory_halves_its_pieces_says_so_and_ends_with_the_same_weights(
    tmp_path: Path, tiny: list[str], start: Start
) -> None:
    settings = [*tiny, *WIDE]
    run = start(train_with_limit, settings, tmp_path / "limited", 160 * 2**20)
    train(Config.load(None, settings), tmp_path / "whole", display=Display(quiet=True))
    run.join()
    words = (tmp_path / "limited.txt").read_text()
    assert run.exitcode == 0, words
    assert re.search(r"memory: a batch does not fit at once; from now on it goes in 2 pieces", words), words
    whole, limited = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "limited"))
    for name in whole:
        torch.testing.assert_close(limited[name], whole[name], rtol=1e-4, atol=5e-5)
    losses = [
        [json.loads(line).get("loss") for line in (tmp_path / name / "log.jsonl").read_text().splitlines()]
        for name in ("whole", "limited")
    ]
    assert losses[0][:3] == pytest.approx(losses[1][:3], rel=1e-5)


def no_room(bytes_of: Callable[[int], int]) -> Callable[[int], int]:
    """Work that needs memory for its pieces; the CPU's real allocator refuses what no machine has."""

    def work(pieces: int) -> int:
        torch.empty(bytes_of(pieces), dtype=torch.uint8)
        return pieces

    return work


def test_pieces_are_doubled_until_they_fit_and_what_an_attempt_left_is_forgotten(tmp_path: Path) -> None:
    micro, forgotten = MicroBatches(tmp_path, Display(quiet=True), alone=True), []
    work = no_room(lambda pieces: 2**58 if pieces < 4 else 8)
    assert micro.spared(work, 16, lambda: forgotten.append(1)) == 4
    assert micro.pieces == 4
    assert len(forgotten) == 2
    with pytest.raises(SaccadeError, match=r"a single pair of the longest batch does not fit.*max_characters"):
        micro.spared(no_room(lambda pieces: 2**58), 4, lambda: None)


def test_among_many_ranks_smaller_pieces_are_for_the_next_start(tmp_path: Path) -> None:
    micro = MicroBatches(tmp_path, Display(quiet=True), alone=False)
    with pytest.raises(RuntimeError, match="allocate memory"):
        micro.spared(no_room(lambda pieces: 2**58), 16, lambda: None)
    assert MicroBatches(tmp_path, Display(quiet=True), alone=False).pieces == 2


def test_only_memory_is_taken_for_memory() -> None:
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"))
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(RuntimeError("The size of tensor a (3) must match the size of tensor b (4)"))
    assert not is_out_of_memory(ValueError("not enough memory"))
    assert is_out_of_memory(RuntimeError("Triton Error [CUDA]: out of memory"))
    assert is_out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"))


def test_an_error_of_a_capture_that_memory_ran_out_in_is_one_of_memory() -> None:
    broken = RuntimeError("CUDA error: operation failed due to a previous error during capture")
    assert not is_out_of_memory(broken)
    broken.__context__ = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    assert is_out_of_memory(broken)


def test_the_longest_batch_is_tried_first_and_changes_nothing(tmp_path: Path, tiny: list[str]) -> None:
    tried = []

    class Watching(Display):
        def say(self, line: str) -> None:
            tried.append(line)

    short = ["training.max_steps=2", "training.batch_tokens=256", "training.average=1"]
    train(Config.load(None, [*tiny, *short]), tmp_path / "run", display=Watching())
    assert not [line for line in tried if line.startswith("memory:")]
    state = json.loads((tmp_path / "run" / "resume" / "step-00000002" / "state.json").read_text())
    assert (state["step"], state["batch"]) == (2, 2)


def test_estimate_says_memory_time_and_batch_of_a_recipe_and_leaves_nothing(
    tmp_path: Path, tiny: list[str], command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("recipe.yaml").write_text("training: {batch_tokens: 512, max_steps: 50, accumulate: 2}\n")
    done = command("estimate", "recipe.yaml", *tiny)
    assert done.status == 0, done.err
    for words in ("model: ", "batch: at most 512 tokens a side, 2 batches a step", "longest batch: ", "fit at once"):
        assert words in done.out
    assert re.search(r"memory: \d+ MB of [\d,]+ MB free \(weights \d+, gradients \d+, moments \d+, activat", done.out)
    assert re.search(r"time: [\d,]+ target tokens/s; at most .* for 50 steps", done.out)
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.yaml"]

    facts = json.loads(command("estimate", "recipe.yaml", *tiny, "training.ema=0.9", "--devices", 2, "--json").out)
    memory = facts["memory"]
    parts = ("weights", "gradients", "moments", "moving_average", "activations")
    assert sum(memory[name] for name in parts) == memory["sum"]
    assert memory["weights"] == 4 * facts["parameters"]
    assert facts["longest_batch"]["pairs"] <= -(-512 // facts["longest_batch"]["source"] // 2)
    assert command("estimate", "recipe.yaml", "gone.en", "gone.de").status == 2


def test_an_estimate_counts_the_pieces_that_fit() -> None:
    def pieces(activations: int, held: int) -> int:
        return Estimate(1.0, 1.0, memory=activations + held, available=1000, activations=activations).pieces

    assert pieces(700, 200) == 1
    assert pieces(701, 200) == 2
    assert pieces(2801, 200) == 8
    assert pieces(0, 200) == 1
    assert pieces(10, 900) == 0
