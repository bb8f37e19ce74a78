"""Training on the CPU: Saccade's step against `torch.nn.Transformer` in a plain loop, same weights, same sentences.

    python -m benchmarks.training

Two plain loops: one as it is usually written (sentences as they come, padded to the longest of the batch), one that is
handed Saccade's own batches, so that only the step differs. Both have dropout wherever ours has it. Before anything is
timed, the losses of all on one batch must be equal.
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path

import torch
import torch.nn.functional as F

from benchmarks.common import Foreign, in_turns, pairs_like_multi30k, report
from benchmarks.peers import TorchTransformer
from saccade.config import Config
from saccade.data.batching import Batch, Batcher, collate
from saccade.data.store import Store, StoreWriter
from saccade.data.tokenizers import PAD
from saccade.models.build import build_model, with_shape
from saccade.models.protocol import EncoderDecoder
from saccade.training.objectives import CrossEntropy
from saccade.training.optim import clip_gradients, make_optimizer, set_learning_rate

SMOOTHING, RATE = 0.1, 3e-4


def main() -> None:
    args = arguments()
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    pairs = pairs_like_multi30k(args.pairs, args.vocabulary)
    with tempfile.TemporaryDirectory() as folder:
        store = stored(pairs, args.vocabulary, Path(folder) / "store")
        batcher = Batcher(store, batch_tokens=args.batch_tokens, seed=1)
        bucketed = list(batcher.epoch(0))
    plain = as_they_come(pairs, args.batch_tokens)
    settings = Config.load(
        None,
        [
            f"model.width={args.width}",
            f"model.feed_forward={args.feed_forward}",
            f"model.heads={args.heads}",
            f"model.encoder_layers={args.layers}",
            f"model.decoder_layers={args.layers}",
            *(f"model.{kind}={args.dropout}" for kind in ("dropout", "attention_dropout", "activation_dropout")),
        ],
    )
    settings = settings.model_copy(update={"model": with_shape(settings.model, joint=True)})
    ours = build_model(settings, args.vocabulary, args.vocabulary)
    theirs = []
    for _ in range(2):
        peer = TorchTransformer(args.vocabulary, args.width, args.heads, args.layers, args.feed_forward, args.dropout)
        peer.copy_from(ours)
        theirs.append(peer)
    check_equal(ours, theirs[0], bucketed[0])
    print(
        f"losses equal; padding: as they come {waste(plain):.1%}, Saccade's batches {waste(bucketed):.1%}; "
        f"{sum(b.target_tokens for b in bucketed) / len(bucketed):,.0f} target tokens a batch"
    )
    foreign = Foreign()
    rates = in_turns(
        {
            "Saccade": saccade_step(ours, settings, cycle(bucketed)),
            "torch.nn.Transformer, batches as they come": torch_step(theirs[0], cycle(plain)),
            "torch.nn.Transformer, Saccade's batches": torch_step(theirs[1], cycle(bucketed)),
        },
        args.steps,
    )
    title = f"training, {args.width} wide, {args.layers}+{args.layers} layers, vocabulary {args.vocabulary:,}"
    report(title, rates, "Saccade", "target tokens/s", foreign.share())


def saccade_step(model: EncoderDecoder, settings: Config, batches: Iterator[Batch]) -> Callable[[], int]:
    objective, optimizer = CrossEntropy(model, SMOOTHING), make_optimizer(model, settings.training)
    set_learning_rate(optimizer, RATE)
    model.train()

    def step() -> int:
        batch = next(batches)
        loss = objective(batch)
        (loss.total / loss.tokens).backward()
        clip_gradients(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return batch.target_tokens

    return step


def torch_step(model: TorchTransformer, batches: Iterator[Batch]) -> Callable[[], int]:
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE, betas=(0.9, 0.98))
    model.train()

    def step() -> int:
        batch = next(batches)
        loss = torch_loss(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return batch.target_tokens

    return step


def torch_loss(model: TorchTransformer, batch: Batch) -> torch.Tensor:
    logits = model(batch.source, batch.inputs)
    return F.cross_entropy(logits.flatten(0, 1), batch.gold.flatten(), ignore_index=PAD, label_smoothing=SMOOTHING)


@torch.no_grad()
def check_equal(ours: EncoderDecoder, theirs: TorchTransformer, batch: Batch) -> None:
    ours.eval()
    theirs.eval()
    loss = CrossEntropy(ours, SMOOTHING)(batch)
    torch.testing.assert_close(loss.total / loss.tokens, torch_loss(theirs, batch), rtol=1e-4, atol=1e-4)


def stored(pairs: list[tuple[list[int], list[int]]], vocabulary: int, folder: Path) -> Store:
    with StoreWriter(folder, source_vocabulary=vocabulary, target_vocabulary=vocabulary) as writer:
        writer.extend(pairs)
    return Store(folder)


def as_they_come(pairs: list[tuple[list[int], list[int]]], batch_tokens: int) -> list[Batch]:
    """As many sentences a batch as give `batch_tokens` target tokens on average."""
    mean = sum(len(target) + 1 for _, target in pairs) / len(pairs)
    size = round(batch_tokens / mean)
    return [collate(pairs[i : i + size], range(size)) for i in range(0, len(pairs) - size, size)]


def waste(batches: list[Batch]) -> float:
    cells = sum(b.source.numel() + b.target.numel() for b in batches)
    return 1 - sum(int((b.source != PAD).sum() + (b.target != PAD).sum()) for b in batches) / cells


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in {
        "width": 256,
        "feed-forward": 1024,
        "heads": 4,
        "layers": 3,
        "vocabulary": 8000,
        "batch-tokens": 4096,
        "pairs": 12_000,
        "steps": 16,
        "threads": 2,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--dropout", type=float, default=0.1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
