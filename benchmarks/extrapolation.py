"""Longer than trained: the loss of each position scheme on inputs that grow beyond what it was trained on.

    python -m benchmarks.extrapolation --train train.en train.de --dev dev.en dev.de --out runs/extrapolation

For each scheme a small Transformer is trained on the training pairs; the pairs that choose its best checkpoint are held
out of them, so the dev pairs are new to it. These are then joined, 1, 2, 3, … consecutive ones with a space between,
and every join is scored by teacher forcing: -log P(target | source), in nats a target token, ends counted. All dev
pairs are in every join (but for a rest), so that the text stays the same and only its length changes. A scheme that
cannot hold a length is shown as refused there.

Settings of the model or of training can be added: `model.size=small model.wiring=causal training.weight_decay=0.01`.
What is done in --out is not done again.
"""

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from saccade.api import settings_from
from saccade.data.lines import read_lines
from saccade.data.store import Store
from saccade.display import Display, spell_time
from saccade.errors import SaccadeError
from saccade.files import write_text, written_atomically
from saccade.models.build import count_parameters
from saccade.training.run import train
from saccade.translator import Translator

SCHEMES = ("sinusoidal", "learned", "shaw", "t5", "alibi", "rotary", "none")
# Okabe and Ito's colours, which the colour-blind can tell apart, and a mark for each.
LOOKS = dict(
    zip(
        SCHEMES,
        zip(("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"), "osD^vPX", strict=True),
        strict=True,
    )
)

Pairs = list[tuple[str, str]]


@dataclass(frozen=True)
class Point:
    """The loss at one length."""

    joined: int
    pairs: int  # how many joins were scored
    source_pieces: float  # in a join, on average
    loss: float | None  # nats a target token; None: refused
    refused: str = ""


@dataclass(frozen=True)
class Curve:
    """One scheme at all lengths."""

    scheme: str
    parameters: int
    trained_on: dict[str, float]  # source pieces of the training pairs: median, 99th percentile, longest
    minutes: float  # to train and to score; little if it was trained before
    points: list[Point]


def main() -> None:
    args = arguments()
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    files = {name: at_most(getattr(args, name), args.max_words, out / "data", name) for name in ("train", "dev")}
    threads = max(1, (os.cpu_count() or 1) // args.jobs)
    work = {
        scheme: (scheme, files, out, settings_of(args, scheme, files["train"], threads), args.joined, args.jobs == 1)
        for scheme in args.schemes
    }
    curves: list[Curve] = []
    for curve in measured(work, args.jobs):
        curves = sorted([*curves, curve], key=lambda c: args.schemes.index(c.scheme))
        write_text(out / "extrapolation.json", json.dumps(report(args, curves), indent=1) + "\n")
        print(f"{curve.scheme}: {spell_time(60 * curve.minutes)}, {len(args.schemes) - len(curves)} to go", flush=True)
    draw(curves, out)
    print(f"\n{markdown(curves)}\n\n{out}/extrapolation.json, .svg, .png")


def measured(work: dict[str, tuple[Any, ...]], jobs: int) -> Iterator[Curve]:
    """The curves as they are ready: in this process, or in `jobs` of their own."""
    if jobs == 1:
        yield from (measure(*task) for task in work.values())
        return
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        for done in as_completed([pool.submit(measure, *task) for task in work.values()]):
            yield done.result()


def measure(
    scheme: str, files: dict[str, list[str]], out: Path, settings: list[str], joined: Sequence[int], speak: bool
) -> Curve:
    """Train one scheme, or find it trained, and score the joined dev pairs."""
    start = time.perf_counter()
    folder = out / scheme
    if speak:
        print(f"{scheme}: {folder}", flush=True)
    translator = train(settings_from(settings), folder, display=Display(quiet=not speak))
    lengths = Store(folder / "resume" / "data" / "train").source_lengths
    dev = list(zip(*(list(read_lines(path)) for path in files["dev"]), strict=True))
    points = [score(translator, join(dev, count), count) for count in joined if count <= len(dev)]
    return Curve(
        scheme,
        count_parameters(translator.model),
        {name: float(np.quantile(lengths, q)) for name, q in (("median", 0.5), ("99%", 0.99), ("longest", 1.0))},
        (time.perf_counter() - start) / 60,
        points,
    )


def score(translator: Translator, pairs: Pairs, joined: int) -> Point:
    sources, targets = ([pair[side] for pair in pairs] for side in (0, 1))
    pieces = [len(ids) for ids in translator.tokenizers.source.encode_batch(sources)]
    tokens = sum(len(ids) + 1 for ids in translator.tokenizers.target.encode_batch(targets))
    try:
        loss, refused = -sum(translator.score(sources, targets)) / tokens, ""
    except SaccadeError as error:
        loss, refused = None, str(error)
    return Point(joined, len(pairs), float(np.mean(pieces)), loss, refused)


def join(pairs: Pairs, count: int) -> Pairs:
    """Every `count` consecutive pairs as one; a rest that is fewer is left out."""
    groups = [pairs[i : i + count] for i in range(0, len(pairs) - count + 1, count)]
    return [(" ".join(source for source, _ in group), " ".join(target for _, target in group)) for group in groups]


def at_most(paths: Sequence[str], words: int | None, folder: Path, name: str) -> list[str]:
    """The files themselves or, with a limit, files with those pairs that have no more words on either side."""
    if words is None:
        return [str(path) for path in paths]
    folder.mkdir(parents=True, exist_ok=True)
    kept = [
        pair
        for pair in zip(*(list(read_lines(path)) for path in paths), strict=True)
        if max(len(side.split()) for side in pair) <= words
    ]
    if not kept:
        raise SaccadeError(f"--max-words {words}: no pair of {' and '.join(paths)} is that short; raise it")
    made = [folder / f"{name}.{side}" for side in ("source", "target")]
    for path, side in zip(made, zip(*kept, strict=True), strict=True):
        write_text(path, "\n".join(side) + "\n")
    return [str(path) for path in made]


def settings_of(args: argparse.Namespace, scheme: str, files: list[str], threads: int) -> list[str]:
    """As `saccade train` takes them: what is given by name comes last and wins."""
    chosen = [
        *files,
        "model.size=tiny",
        f"model.positions={scheme}",
        f"model.max_positions={args.max_positions}",
        f"training.max_steps={args.steps}",
        f"training.seed={args.seed}",
        "training.patience=0",
        "training.validate_bleu_pairs=0",
        "training.tensorboard=false",
        "search.max_source=1000000",
    ]
    if args.batch_tokens:
        chosen.append(f"training.batch_tokens={args.batch_tokens}")
    if args.device:
        chosen.append(f"training.device={args.device}")
    if args.jobs > 1:
        chosen.append(f"training.threads={threads}")
    return [*chosen, *args.settings]


def report(args: argparse.Namespace, curves: Sequence[Curve]) -> dict[str, Any]:
    given = {name: value for name, value in vars(args).items() if name != "out"}
    device = torch.cuda.get_device_name() if torch.cuda.is_available() and args.device != "cpu" else "cpu"
    return {
        "what": "teacher-forced loss in nats a target token, by number of dev pairs joined",
        "arguments": given,
        "torch": torch.__version__,
        "device": device,
        "curves": [asdict(curve) for curve in curves],
    }


def markdown(curves: Sequence[Curve]) -> str:
    """A row a scheme, a column a length."""
    first = curves[0].points
    rows = [
        ["pairs joined", *(str(point.joined) for point in first)],
        ["source pieces, mean", *(f"{point.source_pieces:.0f}" for point in first)],
    ]
    for curve in curves:
        losses = ["refused" if point.loss is None else f"{point.loss:.3f}" for point in curve.points]
        rows.append([f"`{curve.scheme}`", *losses])
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], f"|---|{'---:|' * len(first)}", *lines[1:]])


def draw(curves: Sequence[Curve], out: Path) -> None:
    """Loss against length, every line named where it ends."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.8), layout="constrained")
    ends: list[tuple[float, float, str, str]] = []
    for curve in curves:
        colour, mark = LOOKS[curve.scheme]
        held = [point for point in curve.points if point.loss is not None]
        x, y = [point.source_pieces for point in held], [point.loss for point in held]
        axes.plot(x, y, color=colour, marker=mark, markersize=5, linewidth=1.6)
        refused = len(held) < len(curve.points)
        if held and y[-1] is not None:
            ends.append((x[-1], y[-1], curve.scheme + (", then refused" if refused else ""), colour))
    trained = curves[0].trained_on
    axes.axvspan(0, trained["99%"], color="#999999", alpha=0.15, linewidth=0)
    axes.annotate(
        "← 99% of the training sources",
        (trained["99%"], 0),
        xycoords=("data", "axes fraction"),
        xytext=(3, 3),
        textcoords="offset points",
        ha="left",
        va="bottom",
        fontsize=8,
        color="#555555",
    )
    axes.set_xlim(left=0)
    name_lines(axes, ends)
    axes.set_xlabel("source pieces (mean), of 1, 2, 3, … dev pairs joined")
    axes.set_ylabel("loss, nats a target token")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    for kind in ("svg", "png"):
        with written_atomically(out / f"extrapolation.{kind}") as part:
            figure.savefig(part, format=kind, dpi=160)
    pyplot.close(figure)


def name_lines(axes: Any, ends: Sequence[tuple[float, float, str, str]]) -> None:
    """Names at the right edge, in the order of the lines' ends and pushed apart where they would touch."""
    low, high = axes.get_ylim()
    apart = (high - low) * 0.05
    places = sorted(ends, key=lambda end: end[1])
    heights: list[float] = []
    for _, y, _, _ in places:
        heights.append(max(y, heights[-1] + apart) if heights else y)
    right = axes.get_xlim()[1]
    for (x, y, name, colour), height in zip(places, heights, strict=True):
        axes.annotate(
            name,
            xy=(x, y),
            xytext=(right * 1.03, height),
            color=colour,
            fontsize=9,
            va="center",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.5, "alpha": 0.5},
        )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, what in (("train", "training pairs"), ("dev", "pairs to join and score")):
        parser.add_argument(f"--{name}", nargs=2, required=True, metavar=("SRC", "TGT"), help=what)
    parser.add_argument("--out", required=True, metavar="DIR", help="where models, JSON and figure go")
    parser.add_argument("--steps", type=int, default=4000, help="training steps of each scheme")
    parser.add_argument("--schemes", type=_schemes, default=list(SCHEMES), help=f"of {','.join(SCHEMES)}")
    parser.add_argument("--joined", type=_numbers, default=[1, 2, 3, 4, 6, 8, 12], help="how many pairs are joined")
    parser.add_argument("--max-words", type=int, help="leave out pairs with more words on a side, of train and dev")
    parser.add_argument("--max-positions", type=int, default=128, help="how many vectors `learned` has")
    parser.add_argument("--device", help="cpu, cuda, …; default: a GPU if there is one")
    parser.add_argument("--batch-tokens", type=int, help="tokens of either side in a training batch")
    parser.add_argument("--jobs", type=int, default=1, help="schemes trained at the same time, on the one device")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("settings", nargs="*", metavar="section.key=value", help="other settings, for all schemes")
    return parser.parse_args()


def _schemes(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in SCHEMES]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]} is no scheme; known are {', '.join(SCHEMES)}")
    return names


def _numbers(text: str) -> list[int]:
    return sorted({int(number) for number in text.split(",")})


if __name__ == "__main__":
    try:
        main()
    except SaccadeError as error:
        sys.exit(f"error: {error}")
