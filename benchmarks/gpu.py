"""Every figure of the documentation that wants a GPU, by one command that can be stopped and gone on with.

    python -m benchmarks.gpu --multi30k $MULTI30K --europarl $EUROPARL --out runs/gpu --minutes 28

Runs the scripts that measure, those that are timed alone and those that only train side by side, in the order in which
they settle most. What one prints is in OUT/NAME.log as it comes; one that has ended well is not run again. When the
minutes are over, what runs is told to stop, and saves; the same command goes on. `--only` takes some of them, `--list`
shows the commands. Trainings side by side share a GPU better once `nvidia-cuda-mps-control -d` was started.
"""

import argparse
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from saccade.display import Display
from saccade.files import write_text

RECIPES = Path("recipes")
FORM = ".lc.norm.tok"
GRACE = 30.0  # seconds in which a stage that is told to stop may save
# The rows of the line, those that take longest first: none is then left alone at the end.
LINE = [
    "06-lstmn",
    "07-gnmt",
    "05-luong",
    "04-bahdanau",
    "03-sutskever",
    "08-bytenet",
    "09-convs2s",
    "02-cho",
    "01-rctm",
    "10-transformer",
    "11-transformer-now",
]


class Stage(NamedTuple):
    """A script, and where its results go."""

    name: str
    command: Sequence[str]


def rounds(multi30k: Path, europarl: Path, out: Path, device: str, seeds: int = 3) -> list[list[Stage]]:
    """What runs side by side, round by round; `seeds`: of the line, whose rows take long."""
    parts = {"--data": "train", "--valid": "val", "--test": "test_2016_flickr"}
    files = {what: [str(multi30k / f"{name}{FORM}.{side}.gz") for side in ("en", "de")] for what, name in parts.items()}
    told = [word for what, pair in files.items() for word in (what, *pair)]
    told += ["--out", str(out / "line"), "--seeds", str(seeds), "--jobs", "14", "--device", device]

    def history(names: Sequence[str], *more: str) -> list[str]:
        rows = [str(RECIPES / "history" / f"{name}.yaml") for name in names]
        return ["-m", "saccade", "compare", *rows, *told, *more]

    def tuned(target: str, *protocols: str) -> Stage:
        name = f"multi30k-en-{target}"
        words = ["-m", "benchmarks.multi30k", "en", target, "--data", str(multi30k), "--out", str(out / name)]
        words += ["--device", device, "--seeds", "3", "--jobs", "3", "--test", f"{name}-best", "--protocol", *protocols]
        return Stage(name, words)

    every = sorted(str(path) for path in RECIPES.rglob("*.yaml") if "common" not in path.parts)
    briefly = ["training.max_steps=20", "training.validate_every=20", "--jobs", "16", "--no-speed", "--device", device]
    training = ["-m", "benchmarks.training", "--device", device]
    sides = [str(europarl / f"train.{side}.gz") for side in ("de", "en")]
    minutes = ["-m", "benchmarks.europarl", "--data", str(europarl), "--out", str(out / "europarl")]
    minutes += ["--minutes", "2", "--warmup", "1000"]  # in so little time 4,000 steps of it would be all
    return [
        [Stage("decoding", ["-m", "benchmarks.decoding", "--device", device])],
        [Stage("training-lengths", [*training, "--only", "as they come"])],
        [Stage("training-europarl", [*training, "--files", *sides, "--only", "compiled, as they come"])],
        # That every recipe trains and writes there, on the built-in pairs.
        [Stage("recipes", ["-m", "saccade", "compare", *every, *briefly, "--out", str(out / "recipes")])],
        # Not beside the line: they fill a GPU, and recurrent networks, which are many small kernels, would wait.
        [tuned("fr", "tokenised", "cased"), tuned("de", "cased")],
        [Stage("history", history(LINE, "--no-speed"))],
        [Stage("history-speed", history(sorted(LINE)))],
        [Stage("europarl", [*minutes, "--device", device])],
        [Stage("training-fixed", [*training, "--fixed", "32", "--pairs", "3200", "--only", "compiled"])],
    ]


def measure(rounds: Sequence[Sequence[Stage]], out: Path, until: float, display: Display) -> list[str]:
    """Run what has no result yet, and give the names of those that still have none."""
    for side_by_side in rounds:
        lacking = [stage for stage in side_by_side if not _done(stage, out)]
        if lacking and time.monotonic() < until:
            _run(lacking, out, until, display)
    return [stage.name for side_by_side in rounds for stage in side_by_side if not _done(stage, out)]


def _done(stage: Stage, out: Path) -> bool:
    return (out / f"{stage.name}.done").exists()


def _run(stages: Sequence[Stage], out: Path, until: float, display: Display) -> None:
    out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    running = {stage.name: _started(stage, out) for stage in stages}
    with display.task(", ".join(running), len(stages)) as progress:
        try:
            while running and time.monotonic() < until:
                time.sleep(0.05)
                for name in [name for name, child in running.items() if child.poll() is not None]:
                    status = running.pop(name).returncode
                    took, log = time.monotonic() - began, out / f"{name}.log"
                    if status == 0:
                        write_text(out / f"{name}.done", f"{took:.0f} s\n")
                    how = "done" if status == 0 else f"failed with status {status}, see {log}"
                    display.say(f"{name}: {how} after {took:.0f} s")
                    progress(len(stages) - len(running))
        finally:
            _stop(running)


def _started(stage: Stage, out: Path) -> "subprocess.Popen[bytes]":
    with open(out / f"{stage.name}.log", "ab") as log:
        environment = os.environ | {"PYTHONUNBUFFERED": "1"}
        return subprocess.Popen([sys.executable, *stage.command], stdout=log, stderr=log, env=environment)


def _stop(running: "dict[str, subprocess.Popen[bytes]]") -> None:
    for child in running.values():
        child.terminate()
    for child in running.values():
        try:
            child.wait(GRACE)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--multi30k", type=Path, required=True, help="the folder that holds Multi30k")
    parser.add_argument("--europarl", type=Path, required=True, help="the folder that holds Europarl's de and en")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="then what runs is told to stop")
    parser.add_argument("--seeds", type=int, default=3, help="of the line of attention, whose rows take long")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="some of them")
    parser.add_argument("--list", action="store_true", help="show the commands and run none")
    args = parser.parse_args()
    chosen = rounds(args.multi30k, args.europarl, args.out, args.device, args.seeds)
    names = [stage.name for each in chosen for stage in each]
    if unknown := set(args.only or ()) - set(names):
        raise SystemExit(f"--only {' '.join(sorted(unknown))}: not one of {', '.join(names)}")
    chosen = [[stage for stage in each if not args.only or stage.name in args.only] for each in chosen]
    if args.list:
        for number, each in enumerate(chosen, 1):
            for stage in each:
                print(f"{number}. {stage.name}: python {shlex.join(stage.command)}")
        return
    left = measure(chosen, args.out, time.monotonic() + 60 * args.minutes, Display())
    if left:
        raise SystemExit(f"not measured: {', '.join(left)}; the same command goes on")


if __name__ == "__main__":
    main()
