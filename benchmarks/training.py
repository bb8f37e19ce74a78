"""Training: Saccade's step against `torch.nn.Transformer` and `transformers` MarianMT, same weights, same sentences.

    python -m benchmarks.training                             on the CPU: 256 wide, 3+3 layers, vocabulary 8,000
    python -m benchmarks.training --device cuda               on a GPU: 512 wide, 6+6 layers, vocabulary 32,000, bf16
    python -m benchmarks.training --files a.en.gz a.de.gz     lengths of real sentences instead of Multi30k's fit
    python -m benchmarks.training --fixed 32 --pairs 800      all sentences of one length: nobody pads
    python -m benchmarks.training --only compiled             some of the peers, where time is short

A peer trains as it is usually written: a plain loop over sentences as they come, padded to the longest of the batch
(on a GPU compiled too), and once more handed Saccade's own batches, so that only the step differs. All have dropout in
the same places. Before anything is timed, the losses of all on one batch must be equal. `transformers` is measured
where it is installed.
"""

import argparse
import gc
import importlib.util
import math
import statistics
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.common import Foreign, Ids, in_turns, pairs_like_multi30k, report
from benchmarks.idle import of_the_gpu
from benchmarks.marian import marian
from benchmarks.peers import TorchTransformer
from saccade.config import Config
from saccade.data.batching import Batch, Batcher, collate
from saccade.data.store import Store, StoreWriter
from saccade.data.tokenizers import PAD
from saccade.data.unpadded import UnpaddedBatch, UnpaddedBatcher
from saccade.devices import autocast
from saccade.display import Display
from saccade.models.build import build_model, with_shape
from saccade.models.packing import pack
from saccade.models.protocol import EncoderDecoder
from saccade.training.captured import CapturedSteps
from saccade.training.objectives import CrossEntropy
from saccade.training.optim import clip_gradients, make_optimizer, set_learning_rate
from saccade.training.unpadded import Unpadded

SMOOTHING, RATE = 0.1, 3e-4
H200 = 790e12  # bf16 floating-point operations a second that its matrix units were seen to do
Pairs = list[tuple[Ids, Ids]]
Contestants = dict[str, Callable[[], Callable[[], int]]]
SIZES = {  # on a CPU, on a GPU
    "width": (256, 512),
    "feed-forward": (1024, 2048),
    "heads": (4, 8),
    "layers": (3, 6),
    "vocabulary": (8000, 32_000),
    "batch-tokens": (4096, 25_600),
}


def main() -> None:
    args = arguments()
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    device = torch.device(args.device)
    pairs = sentences(args)
    with tempfile.TemporaryDirectory() as folder:
        store = stored(pairs, args.vocabulary, Path(folder) / "store")
        ours = list(Batcher(store, batch_tokens=args.batch_tokens, seed=1).epoch(0))
        unpadded, empty = without_padding(store, args) if device.type == "cuda" else ([], 0.0)
    batches = {"as they come": as_they_come(pairs, args.batch_tokens), "Saccade's batches": ours}
    model, settings = saccade_model(args)
    check_equal(model, peers(args, model), ours[0], device)
    if device.type == "cuda":
        check_unpadded(model, settings, unpadded[0], pairs, device)
    print(
        "losses equal; "
        + ", ".join(f"{name} {waste(each):.1%} padding" for name, each in batches.items())
        + (f", without padding {empty:.1%} empty" if unpadded else "")
        + f"; {sum(b.target_tokens for b in ours) / len(ours):,.0f} target tokens a batch"
    )
    foreign = Foreign()
    contestants: Contestants = {"Saccade": lambda: saccade_step(model.to(device), settings, cycle(ours), device)}
    if device.type == "cuda":
        contestants = {
            "Saccade": lambda: captured_step(model.to(device), settings, cycle(unpadded)),
            "Saccade, padded, not captured": contestants["Saccade"],
        }
    if args.fixed:
        del batches["Saccade's batches"]  # the same
    for name, peer in peers(args, model).items():
        for how, given in batches.items():
            contestants[f"{name}, {how}"] = partial(plain_step, peer, cycle(given), device)
            if device.type == "cuda" and not args.eager:
                contestants[f"{name}, compiled, {how}"] = partial(plain_step, peer, cycle(given), device, compiled=True)
    if args.only:
        contestants = {
            name: make
            for name, make in contestants.items()
            if name == "Saccade" or any(word in name for word in args.only)
        }
    if device.type == "cuda":
        print(one_by_one(contestants, ours, args, device))
        return
    running = {name: make() for name, make in contestants.items()}
    rates = in_turns(running, args.steps, warmup=args.warmup)
    title = f"training, {args.width} wide, {args.layers}+{args.layers} layers, vocabulary {args.vocabulary:,}"
    report(title, rates, "Saccade", "target tokens/s", foreign.share())


def one_by_one(contestants: "Contestants", batches: list[Batch], args: argparse.Namespace, device: torch.device) -> str:
    """On a GPU each is made, timed and gone before the next, so that the most memory it takes can be told."""
    rates: dict[str, list[float]] = {}
    memory = []
    foreign = Foreign()
    for name, make in contestants.items():
        torch.compiler.reset()
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        try:
            step = make()
            rates |= in_turns({name: step}, args.steps, warmup=args.warmup)
        except RuntimeError as error:  # of a peer that cannot be compiled, say
            print(f"{name}: {str(error).splitlines()[0]}")
            continue
        peak = torch.cuda.max_memory_allocated(device) - before
        memory.append(f"{name} {peak / 2**30:.1f} GB")
        # Now, so that a run that is cut short has said what it found.
        print(f"{name}: {statistics.median(rates[name]):,.0f} target tokens/s, {peak / 2**30:.1f} GB", flush=True)
        if name.startswith("Saccade"):
            print(f"{name}: {idle_share(step)}", flush=True)
        del step
    title = f"training, {args.width} wide, {args.layers}+{args.layers} layers, vocabulary {args.vocabulary:,}"
    report(title, rates, "Saccade", "target tokens/s", foreign.share())
    return f"{of_the_units(rates, batches, args)}\nmost memory: {'; '.join(memory)}"


def idle_share(step: Callable[[], int]) -> str:
    try:
        return f"GPU idle {of_the_gpu(step):.1%} of the time"
    except RuntimeError as error:  # of a profiler that may not look
        return f"how long the GPU was idle cannot be told: {str(error).splitlines()[0]}"


def sentences(args: argparse.Namespace) -> Pairs:
    """Ids in sentences of real lengths, or all of one length."""
    if args.fixed:
        # One less: the end is counted.
        random = torch.Generator().manual_seed(1)
        ids = torch.randint(4, args.vocabulary, (args.pairs, 2, args.fixed - 1), generator=random).tolist()
        return [(source, target) for source, target in ids]
    if args.files:
        return pairs_of(args.files, args.pairs, args.vocabulary)
    return pairs_like_multi30k(args.pairs, args.vocabulary)


def pairs_of(files: list[str], count: int, vocabulary: int) -> Pairs:
    from saccade.data.corpora import read_lines
    from saccade.data.tokenizers import Tokenizer

    sides = [list(islice(read_lines(file), count)) for file in files]
    tokenizer = Tokenizer.train([line for side in sides for line in side], "bpe", vocabulary)
    return list(zip(*(tokenizer.encode_batch(side) for side in sides), strict=True))


def saccade_model(args: argparse.Namespace) -> tuple[EncoderDecoder, Config]:
    settings = Config.load(
        None,
        [
            f"model.width={args.width}",
            f"model.feed_forward={args.feed_forward}",
            f"model.heads={args.heads}",
            f"model.encoder_layers={args.layers}",
            f"model.decoder_layers={args.layers}",
            "model.norm=post",  # as MarianMT has it
            *(f"model.{kind}={args.dropout}" for kind in ("dropout", "attention_dropout", "activation_dropout")),
        ],
    )
    settings = settings.model_copy(update={"model": with_shape(settings.model, joint=True)})
    return build_model(settings, args.vocabulary, args.vocabulary), settings


class Peer(NamedTuple):
    """How one is made, with the weights of ours, and how it is asked for its logits (B, T, V)."""

    make: Callable[[], nn.Module]
    logits: Callable[[nn.Module, Batch], Tensor]


def peers(args: argparse.Namespace, model: EncoderDecoder) -> dict[str, Peer]:
    shape = args.vocabulary, args.width, args.heads, args.layers, args.feed_forward

    def torch_transformer() -> nn.Module:
        peer = TorchTransformer(*shape, args.dropout, pre=False)
        peer.copy_from(model)
        return peer

    found = {"torch.nn.Transformer": Peer(torch_transformer, lambda peer, batch: peer(batch.source, batch.inputs))}
    if importlib.util.find_spec("transformers") is not None:
        made = partial(marian, model, args.heads, args.dropout, tied=True)
        found["transformers MarianMT"] = Peer(made, marian_logits)
    return found


def marian_logits(peer: Any, batch: Batch) -> Tensor:
    mask = batch.source_mask.long()
    return peer(input_ids=batch.source, attention_mask=mask, decoder_input_ids=batch.inputs, use_cache=False).logits


def saccade_step(
    model: EncoderDecoder, settings: Config, batches: Iterator[Batch], device: torch.device | None = None
) -> Callable[[], int]:
    device = device or torch.device("cpu")
    if device.type == "cpu":
        pack(model)
    objective, optimizer = CrossEntropy(model, SMOOTHING), make_optimizer(model, settings.training)
    set_learning_rate(optimizer, RATE)
    model.train()

    def step() -> int:
        batch = next(batches)
        with autocast(device, "bf16" if device.type == "cuda" else None):
            loss = objective(batch.to(device, non_blocking=True))
        (loss.total / loss.tokens).backward()
        clip_gradients(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return finished(batch, device)

    return step


def captured_step(model: EncoderDecoder, settings: Config, batches: Iterator[UnpaddedBatch]) -> Callable[[], int]:
    settings = settings.with_changes({"training": {"precision": "bf16", "r_drop": 0.0, "label_smoothing": SMOOTHING}})
    steps = CapturedSteps(model, settings.training, make_optimizer(model, settings.training), Display())
    placed = (batch.pin_memory() for batch in batches)

    def step() -> int:
        batch = next(placed)
        steps.take([batch], batch.target_tokens, RATE)
        torch.cuda.synchronize()
        return batch.target_tokens

    return step


def plain_step(peer: Peer, batches: Iterator[Batch], device: torch.device, compiled: bool = False) -> Callable[[], int]:
    model = peer.make().to(device)
    fused = device.type == "cuda"  # as people do there
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.98), fused=fused)
    model.train()
    called = torch.compile(model) if compiled else model

    def step() -> int:
        batch = next(batches)
        placed = batch.to(device)
        with autocast(device, "bf16" if device.type == "cuda" else None):
            loss = plain_loss(peer.logits(called, placed), placed)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return finished(batch, device)

    return step


def finished(batch: Batch, device: torch.device) -> int:
    if device.type == "cuda":
        torch.cuda.synchronize()
    return batch.target_tokens


def plain_loss(logits: Tensor, batch: Batch) -> Tensor:
    return F.cross_entropy(
        logits.flatten(0, 1).float(), batch.gold.flatten(), ignore_index=PAD, label_smoothing=SMOOTHING
    )


@torch.no_grad()
def check_equal(ours: EncoderDecoder, theirs: dict[str, Peer], batch: Batch, device: torch.device) -> None:
    """All in float32, without dropout."""
    batch = batch.to(device)
    loss = CrossEntropy(ours.eval().to(device), SMOOTHING)(batch)
    for name, peer in theirs.items():
        other = plain_loss(peer.logits(peer.make().eval().to(device), batch), batch)
        if not math.isclose(loss.total / loss.tokens, other, rel_tol=1e-4):
            raise SystemExit(f"{name}: its loss is {other}, ours {loss.total / loss.tokens}")


@torch.no_grad()
def check_unpadded(
    model: EncoderDecoder, settings: Config, batch: UnpaddedBatch, pairs: Pairs, device: torch.device
) -> None:
    """The same pairs without padding have the same loss, but for what the kernels round."""
    padded = collate([pairs[i] for i in batch.indices.tolist()], batch.indices.numpy()).to(device)
    expected = CrossEntropy(model.eval(), SMOOTHING)(padded)
    training = settings.training.model_copy(update={"label_smoothing": SMOOTHING, "r_drop": 0.0})
    found = Unpadded(model, training)(batch.to(device))
    if found.tokens != expected.tokens or not math.isclose(found.total, expected.total, rel_tol=1e-3):
        raise SystemExit(f"without padding the loss is {found.total}, with it {expected.total}")


def stored(pairs: Pairs, vocabulary: int, folder: Path) -> Store:
    with StoreWriter(folder, source_vocabulary=vocabulary, target_vocabulary=vocabulary) as writer:
        writer.extend(pairs)
    return Store(folder)


def as_they_come(pairs: Pairs, batch_tokens: int) -> list[Batch]:
    """As many sentences a batch as give `batch_tokens` target tokens on average."""
    mean = sum(len(target) + 1 for _, target in pairs) / len(pairs)
    size = min(round(batch_tokens / mean), len(pairs))
    return [collate(pairs[i : i + size], range(size)) for i in range(0, len(pairs) - size + 1, size)]


def without_padding(store: Store, args: argparse.Namespace) -> tuple[list[UnpaddedBatch], float]:
    """An epoch of batches, and how much of them is empty."""
    batcher = UnpaddedBatcher(store, batch_tokens=args.batch_tokens, seed=1)
    return [batch for _, batch in islice(batcher.stream(), batcher.batches_in(0))], batcher.waste()


def waste(batches: list[Batch]) -> float:
    cells = sum(b.source.numel() + b.target.numel() for b in batches)
    return 1 - sum(int((b.source != PAD).sum() + (b.target != PAD).sum()) for b in batches) / cells


def of_the_units(rates: dict[str, list[float]], batches: list[Batch], args: argparse.Namespace) -> str:
    """The share of what the matrix units can do: six operations a weight and token, and those of attention."""
    source = sum(int((b.source != PAD).sum()) for b in batches) / sum(b.source.size(0) for b in batches)
    target = sum(b.target_tokens for b in batches) / sum(b.target.size(0) for b in batches)
    E, inner, L = args.width, args.feed_forward, args.layers
    encoder, decoder = L * (4 * E * E + 2 * E * inner), L * (8 * E * E + 2 * E * inner)
    attention = L * E * (2 * source * source / target + target + 2 * source)
    operations = 6 * (encoder * source / target + decoder + args.vocabulary * E + attention)
    shares = (f"{name} {sorted(each)[len(each) // 2] * operations / H200:.1%}" for name, each in rates.items())
    return f"of the {H200 / 1e12:.0f} TFLOP/s of an H200's units: " + "; ".join(shares)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    for name, (cpu, gpu) in SIZES.items():
        parser.add_argument(f"--{name}", type=int, help=f"{cpu:,} on a CPU, {gpu:,} on a GPU")
    parser.add_argument("--files", nargs=2, metavar=("SOURCE", "TARGET"), help="text whose lengths are taken")
    parser.add_argument("--eager", action="store_true", help="peers on a GPU as they are written, not compiled too")
    parser.add_argument("--only", nargs="+", help="beside Saccade, those whose name holds one of these words")
    parser.add_argument("--fixed", type=int, help="tokens of every sentence, its end counted")
    for name, value in {"pairs": 12_000, "steps": 16, "warmup": 2, "threads": 2}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--dropout", type=float, default=0.1)
    args = parser.parse_args()
    for name, (cpu, gpu) in SIZES.items():
        key = name.replace("-", "_")
        setattr(args, key, getattr(args, key) or (cpu if torch.device(args.device).type == "cpu" else gpu))
    return args


if __name__ == "__main__":
    main()
