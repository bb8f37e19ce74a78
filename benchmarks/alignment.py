"""Alignment error rate of what two Transformers look at, one for each direction.

    python -m benchmarks.alignment prepare --data EUROPARL --gold ALIGNMENT --out runs/alignment    (needs sacremoses)
    python -m benchmarks.alignment train   --out runs/alignment
    python -m benchmarks.alignment measure --out runs/alignment

`prepare` lower-cases and Moses-tokenises `train.{de,en}.gz` and `dev.{de,en}.gz` of EUROPARL, and adds the sentences of
ALIGNMENT (`sentences.{de,en}`), whose links nobody sees, to the training text, as is done for statistical aligners.
`train` trains both directions at the same time on one device. `measure` reads attention in one direction and in two,
trains alignment heads from the links of the attention itself, and prints a table of error rates on `gold.pharaoh`.
"""

import argparse
import gzip
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from saccade.alignment.align import Aligned, Aligner, AttentionReader, Reader
from saccade.alignment.choice import Candidates, Choice, choose
from saccade.alignment.symmetry import METHODS
from saccade.alignment.train_head import Text, train_head
from saccade.data.lines import read_lines
from saccade.display import Display
from saccade.evaluation.alignment import read_pharaoh, score_alignment
from saccade.files import write_text
from saccade.folder import load

DIRECTIONS = (("de", "en"), ("en", "de"))
RECIPE = (
    "tokenizer.vocabulary=10000",
    "tokenizer.joint=true",
    "model.width=256",
    "model.feed_forward=1024",
    "model.heads=8",
    "model.encoder_layers=6",
    "model.decoder_layers=6",
    "model.dropout=0.15",
    "training.batch_tokens=16384",
    "training.learning_rate=2e-3",
    "training.schedule=linear",
    "training.warmup_steps=500",
    "training.validate_bleu_pairs=0",
    "training.patience=0",
    "training.tensorboard=false",
    "data.cleaning.enabled=false",
)
SMALL = (  # for two cores: an hour and a half
    "tokenizer.vocabulary=8000",
    "model.width=160",
    "model.feed_forward=640",
    "model.heads=5",
    "model.encoder_layers=3",
    "model.decoder_layers=3",
    "model.dropout=0.1",
    "training.batch_tokens=4096",
    "training.warmup_steps=400",
    "training.validate_every=460",
    "training.threads=1",
    "training.r_drop=0",
)
SMALL_STEPS, SMALL_MINUTES = 4600, 240
CHOSEN_ON = 20_000  # pairs of the training text


def prepare(data: Path, gold: Path, out: Path) -> None:
    from benchmarks.moses import prepared

    out.mkdir(parents=True, exist_ok=True)
    for language in ("de", "en"):
        for name in ("train", "dev"):
            lines = list(prepared(str(data / f"{name}.{language}.gz"), language))
            if name == "train":
                lines += read_lines(str(gold / f"sentences.{language}"))
            with gzip.open(out / f"{name}.{language}.gz", "wt", encoding="utf-8") as file:
                file.writelines(line + "\n" for line in lines)
        shutil.copy(gold / f"sentences.{language}", out)
    shutil.copy(gold / "gold.pharaoh", out)


def train(out: Path, steps: int, minutes: float, more: Sequence[str]) -> None:
    """Both directions at once, each in a process of its own."""
    running = []
    for source, target in DIRECTIONS:
        files = [str(out / f"train.{side}.gz") for side in (source, target)]
        valid = [str(out / f"dev.{side}.gz") for side in (source, target)]
        command = [sys.executable, "-m", "saccade", "train", *files, "--valid", *valid]
        command += ["--out", str(out / f"{source}-{target}"), *RECIPE, f"training.max_steps={steps}"]
        command += [f"training.max_minutes={minutes:g}", *more]
        log = open(out / f"{source}-{target}.log", "w")  # noqa: SIM115
        running.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT))
    codes = [process.wait() for process in running]
    if any(codes):
        sys.exit(f"a training failed; see {out}/*.log")


class Bench:
    """The gold pairs, the training pairs, and a table that grows."""

    def __init__(self, out: Path, device: str | None, pairs: int) -> None:
        self.out = out
        self.gold = read_pharaoh(str(out / "gold.pharaoh"))
        self.text = [list(read_lines(str(out / f"sentences.{side}"))) for side in ("de", "en")]
        self.train = [list(read_lines(str(out / f"train.{side}.gz")))[-pairs:] for side in ("de", "en")]
        self.models = [load(out / f"{source}-{target}", device, engine="torch") for source, target in DIRECTIONS]
        self.rows: list[dict[str, object]] = []

    def add(self, name: str, aligner: Aligner, flipped: bool = False) -> None:
        found = aligner.align(*(self.text[::-1] if flipped else self.text))
        links = [frozenset((t, s) if flipped else (s, t) for s, t in each.links) for each in found]
        score = score_alignment(links, self.gold)
        self.rows.append({"name": name, **score._asdict()})
        print(f"| {name} | {score.error_rate:.1%} | {score.precision:.1%} | {score.recall:.1%} |", flush=True)

    def links(self, aligner: Aligner) -> list[Aligned]:
        started = time.perf_counter()
        found = list(aligner.stream(zip(*self.train, strict=True), 20_000))
        print(f"{len(found):,} pairs aligned in {time.perf_counter() - started:.0f} s", file=sys.stderr)
        return found

    def heads(self, silver: list[Aligned], epochs: int) -> tuple[Reader, Reader]:
        """A head for each direction, trained from the same links."""
        readers = []
        for number, (model, (source, target)) in enumerate(zip(self.models, DIRECTIONS, strict=True)):
            links = [frozenset((t, s) if number else (s, t) for s, t in each.links) for each in silver]
            started = time.perf_counter()
            text = Text(*(self.train[::-1] if number else self.train), links)
            trained = train_head(model, text, epochs=epochs, display=Display())
            trained.reader.save(self.out / f"{source}-{target}", {"pairs": len(links), "agreement": trained.agreement})
            seconds = time.perf_counter() - started
            print(f"head {source}-{target}: F1 {trained.agreement:.1%}, {seconds:.0f} s", file=sys.stderr)
            readers.append(trained.reader)
        return readers[0], readers[1]


def measure(out: Path, device: str | None, pairs: int, epochs: int, rounds: int) -> None:
    bench = Bench(out, device, pairs)
    sample = [side[:CHOSEN_ON] for side in bench.train]
    candidates = [
        Candidates(model, *(sample[::-1] if number else sample), Display()) for number, model in enumerate(bench.models)
    ]
    print("| links | AER | precision | recall |\n|---|---|---|---|", flush=True)
    for number, (model, found) in enumerate(zip(bench.models, candidates, strict=True)):
        name = "-".join(DIRECTIONS[number])
        for layer in found.layers:
            readings = Choice(tuple(found.readings[i] for i in layer))
            when = "one step later" if readings.readings[0].later else "at the own step"
            label = f"{name}: layer {readings.readings[0].layer + 1}, {when}"
            bench.add(label, Aligner(AttentionReader(model, readings)), flipped=bool(number))
    alone = [AttentionReader(model, choose(found)) for model, found in zip(bench.models, candidates, strict=True)]
    for number, reader in enumerate(alone):
        print(f"{'-'.join(DIRECTIONS[number])}: {reader.choice}", file=sys.stderr)
        reader.choice.save(out / "-".join(DIRECTIONS[number]))
        name = "-".join(DIRECTIONS[number])
        bench.add(f"**{name}: heads chosen by Model 1**", Aligner(reader), flipped=bool(number))
        for method in METHODS:
            own = Aligner(reader, method=method, both_ways=True)
            bench.add(f"{name}: heads by Model 1, both ways, {method}", own, flipped=bool(number))
    for method in METHODS:
        bench.add(f"both directions, {method}", Aligner(alone[0], alone[1], method))
    teacher = Aligner(alone[0], alone[1])
    for turn in range(1, rounds + 1):
        there, back = bench.heads(bench.links(teacher), epochs)
        bench.add(f"**trained head {turn}, de-en**", Aligner(there))
        bench.add(f"**trained head {turn}, en-de**", Aligner(back), flipped=True)
        for method in METHODS:
            bench.add(f"trained heads {turn}, both, {method}", Aligner(there, back, method))
        teacher = Aligner(there, back)
    write_text(out / "alignment.json", json.dumps(bench.rows, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("stage", choices=("prepare", "train", "measure"))
    parser.add_argument("--data", type=Path)
    parser.add_argument("--gold", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device")
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--minutes", type=float, default=9.0, help="of training, both directions at once")
    parser.add_argument("--pairs", type=int, default=200_100, help="for the alignment heads, the last of the text")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=2, help="each teaches the next heads by its own links")
    parser.add_argument("--small", action="store_true", help="models, steps and time for two cores without a GPU")
    parser.add_argument("--set", nargs="*", default=(), dest="more", help="more settings of the two trainings")
    given = parser.parse_args()
    if given.stage == "prepare":
        prepare(given.data, given.gold, given.out)
    elif given.stage == "train":
        if given.small:
            train(given.out, SMALL_STEPS, SMALL_MINUTES, (*SMALL, *given.more))
        else:
            train(given.out, given.steps, given.minutes, given.more)
    else:
        measure(given.out, given.device, given.pairs, given.epochs, given.rounds)


if __name__ == "__main__":
    main()
