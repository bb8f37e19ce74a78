"""Each family's training on the CPU: Saccade's step against the same network written directly in PyTorch.

    python -m benchmarks.families
    python -m benchmarks.families --files $MULTI30K/train.lc.norm.tok.en.gz $MULTI30K/train.lc.norm.tok.de.gz

Both have the same shape, the same weights, the same batches and the same threads, so that layers, loss and optimiser
are all that differs. Before anything is timed, dropout off, the losses and the norms of the gradients must be equal;
then both train, dropout on, a step each in turn. The ratio is the median over the rounds of ours to theirs.
"""

import argparse
import json
import math
import platform
import statistics
import tempfile
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.common import Foreign, in_turns, processor
from benchmarks.direct import NETWORKS, Direct, Network
from benchmarks.training import saccade_step
from saccade.config import Config
from saccade.data.batching import Batch, Batcher
from saccade.data.prepare import prepare
from saccade.display import Display
from saccade.models.build import build_model, with_shape
from saccade.models.protocol import EncoderDecoder
from saccade.training.objectives import CrossEntropy

SMOOTHING, RATE, CLIP = 0.1, 3e-4, 1.0


class Row(NamedTuple):
    """How fast a family trains, in target tokens a second, and ours to theirs."""

    family: str
    ours: float
    direct: float
    ratio: float
    lower: float  # quartiles of the ratio
    upper: float


def main() -> None:
    args = arguments()
    torch.set_num_threads(args.threads)
    batches, vocabulary = real_batches(args)
    foreign = Foreign()
    rows = []
    for family in args.families:
        rows.append(measure(family, args, batches, vocabulary))
        if not args.json:
            print(f"{family}: {rows[-1].ratio:.2f}", flush=True)
    about = {
        "size": args.size,
        "vocabulary": vocabulary,
        "target_tokens": round(statistics.mean(batch.target_tokens for batch in batches)),
        "rounds": args.rounds,
        "threads": args.threads,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": processor(),
        "foreign": foreign.share(),
    }
    print(json.dumps({"rows": [row._asdict() for row in rows], **about}, indent=1) if args.json else page(rows, about))


def measure(family: str, args: argparse.Namespace, batches: list[Batch], vocabulary: int) -> Row:
    torch.manual_seed(1)
    network = NETWORKS[family]
    settings = settings_of(network, f"model.size={args.size}", f"model.dropout={args.dropout}")
    check_equal(
        *twins(network, settings_of(network, f"model.size={args.size}", "model.dropout=0"), vocabulary), batches[0]
    )
    ours, direct = twins(network, settings, vocabulary)
    steps = {
        "ours": saccade_step(ours, settings, cycle(batches)),
        "direct": direct_step(direct, settings, cycle(batches)),
    }
    rates = in_turns(steps, args.rounds, warmup=len(batches))
    ratios = [own / other for own, other in zip(rates["ours"], rates["direct"], strict=True)]
    lower, middle, upper = statistics.quantiles(ratios, n=4)
    medians = (statistics.median(rates[name]) for name in ("ours", "direct"))
    return Row(family, *medians, middle, lower, upper)


def settings_of(network: Network, *more: str) -> Config:
    settings = Config.load(None, [*network.settings, *more])
    return settings.model_copy(update={"model": with_shape(settings.model, joint=True)})


def twins(network: Network, settings: Config, vocabulary: int) -> tuple[EncoderDecoder, Direct]:
    """Saccade's model and the direct one, with the same weights: louder than fresh ones, so that a difference shows."""
    ours = build_model(settings, vocabulary, vocabulary)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    direct = network.direct(settings.model, vocabulary)
    direct.copy_from(ours)
    return ours, direct


def check_equal(ours: EncoderDecoder, direct: Direct, batch: Batch, tolerance: float = 1e-4) -> None:
    """Refuse to go on unless loss and gradient are the same; both train, without dropout."""
    summed = CrossEntropy(ours.train(), SMOOTHING)(batch)
    own, other = summed.total / summed.tokens, direct.train().loss(batch, SMOOTHING)
    pairs = {
        "losses": (own, other),
        "norms of the gradients": (gradient_norm(ours, own), gradient_norm(direct, other)),
    }
    for what, (own, other) in pairs.items():
        if not math.isclose(own.item(), other.item(), rel_tol=tolerance):
            raise SystemExit(f"{type(direct).__name__}: the {what} differ, {own.item()} and {other.item()}")


def gradient_norm(model: nn.Module, loss: Tensor) -> Tensor:
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    return torch.stack([gradient.norm() for gradient in gradients]).norm()


def direct_step(model: Direct, settings: Config, batches: Iterator[Batch]) -> Callable[[], int]:
    training = settings.training
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=RATE,
        betas=(training.adam_beta1, training.adam_beta2),
        eps=training.adam_epsilon,
        weight_decay=training.weight_decay,
        fused=True,
    )
    parameters = list(model.parameters())
    model.train()

    def step() -> int:
        batch = next(batches)
        model.loss(batch, SMOOTHING).backward()
        nn.utils.clip_grad_norm_(parameters, CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return batch.target_tokens

    return step


def real_batches(args: argparse.Namespace) -> tuple[list[Batch], int]:
    """Some batches of a real corpus, and the size of its joint vocabulary."""
    data = [f"data.train=[{','.join(args.files)}]"] if args.files else []
    settings = Config.load(None, [*data, f"tokenizer.vocabulary={args.vocabulary}", "tokenizer.joint=true"])
    with tempfile.TemporaryDirectory() as folder:
        prepared = prepare(settings, Path(folder) / "data", Display(quiet=True))
        batcher = Batcher(prepared.train, batch_tokens=args.batch_tokens, seed=1)
        return list(islice(batcher.epoch(0), args.batches)), prepared.tokenizers.target.size


def page(rows: list[Row], about: dict[str, Any]) -> str:
    """The table, in Markdown."""
    lines = ["", "| family | Saccade, target tokens/s | direct PyTorch | ratio | quartiles |", "|---|---|---|---|---|"]
    for row in rows:
        quartiles = f"{row.lower:.2f} – {row.upper:.2f}"
        lines.append(f"| {row.family} | {row.ours:,.0f} | {row.direct:,.0f} | {row.ratio:.2f} | {quartiles} |")
    lines += [
        "",
        f"size {about['size']}, vocabulary {about['vocabulary']:,}, {about['target_tokens']:,} target tokens a batch, "
        f"{about['rounds']} rounds, {about['threads']} threads of {about['processor']}, torch {about['torch']}, "
        f"Python {about['python']}; others took {about['foreign']:.1%} of the CPU",
    ]
    return "\n".join(lines)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", choices=list(NETWORKS), default=list(NETWORKS), metavar="NAME")
    parser.add_argument("--files", nargs=2, metavar=("SOURCE", "TARGET"), help="text files; none: the built-in corpus")
    parser.add_argument("--size", default="small", help="a named size of Saccade's")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=24, help="steps of each that are timed, at least 2")
    parser.add_argument("--batches", type=int, default=6, help="different batches, gone through again and again")
    parser.add_argument("--batch-tokens", type=int, default=2048)
    parser.add_argument("--vocabulary", type=int, default=8000)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return parser.parse_args()


if __name__ == "__main__":
    main()
