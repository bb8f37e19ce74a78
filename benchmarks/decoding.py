"""Decoding, text in and text out: Saccade against `transformers` `generate()` and CTranslate2, same weights.

    python -m benchmarks.decoding                     on the CPU: 256 wide, 3+3 layers, vocabulary 8,000
    python -m benchmarks.decoding --device cuda       on a GPU: 512 wide, 6+6 layers, vocabulary 32,000, bf16

All contestants get the same sentences, tokenise, pad, search and make text of what they found, and take turns. Before
anything is timed, all must have written the same tokens in float32; what bf16 and int8 change is reported. Needs
`transformers`; `ctranslate2` is measured where it is installed.
"""

import argparse
import importlib.util
import json
import platform
import statistics
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from benchmarks import marian as peers
from benchmarks.common import Foreign, in_turns, pairs_like_multi30k, processor
from saccade.devices import describe_device
from saccade.translator import Translator

OURS, GENERATE, ENGINE = "Saccade", "transformers generate()", "CTranslate2"
ROOM = 8  # tokens that a sentence might have beyond those it has
EQUAL = {"cpu": 1.0, "cuda": 0.95}  # share of sentences that must be alike: a GPU's kernels round ties as they like


def main() -> None:
    args = arguments()
    device = torch.device(args.device)
    torch.set_num_threads(args.threads)
    translator = peers.varied(
        width=args.width,
        inner=args.feed_forward,
        heads=args.heads,
        layers=args.layers,
        vocabulary=args.vocabulary,
        tokens=args.tokens,
    )
    peer = peers.marian(translator.model, args.heads)
    translator.model.to(device)
    peer.to(device)
    same = {case: check(translator, peer, {}, case, args) for case in cases(args)}
    if args.precision == "bf16":
        translator.model.to(torch.bfloat16)
        peer.to(torch.bfloat16)
    rows = [measure(translator, peer, {}, case, args) | {"same": same[case]} for case in cases(args)]
    if device.type == "cpu" and importlib.util.find_spec("ctranslate2") is not None:
        # Once CTranslate2 is in a process its threads stand in the way of torch's: ours and `generate()` were three
        # times as slow at batch 1, beam 5. So it comes when theirs is measured.
        with tempfile.TemporaryDirectory() as folder:
            engines = engines_of(peer, translator, Path(folder), args)
            for row in rows:
                case = row["batch"], row["beam"]
                row["same"] |= check(translator, peer, engines, case, args)
                row["tokens_per_second"] |= measure(translator, None, engines, case, args)["tokens_per_second"]
    print(json.dumps({"rows": rows, "setting": setting(device, args)}) if args.json else table(rows, device, args))


def cases(args: argparse.Namespace) -> list[tuple[int, int]]:
    return [(batch, beam) for batch in args.batch for beam in args.beam]


def engines_of(peer: Any, translator: Translator, folder: Path, args: argparse.Namespace) -> dict[str, list[Any]]:
    """CTranslate2 by the type of its arithmetic, once with all threads and once with one: which is quicker depends."""
    import ctranslate2

    made: dict[str, list[Any]] = {}
    for kind in ("float32", "int8"):
        where = folder / kind
        peers.to_ctranslate2(peer, translator.tokenizers.target, where, None if kind == "float32" else kind)
        made[kind] = [
            ctranslate2.Translator(str(where), device="cpu", compute_type=kind, inter_threads=1, intra_threads=n)
            for n in sorted({1, args.threads}, reverse=True)
        ]
    return made


def texts(batch: int, translator: Translator, seed: int) -> list[str]:
    """Sentences as long as Multi30k's, of the tokenizer's words."""
    tokenizer = translator.tokenizers.source
    words = [i for i in range(tokenizer.size) if len(tokenizer.decode([i])) == 4]
    pairs = pairs_like_multi30k(batch, 4 + len(words), seed)
    return [tokenizer.decode([words[i - 4] for i in source]) for source, _ in pairs]


Contestants = dict[str, peers.Run]


def contestants(
    translator: Translator, peer: Any, engines: dict[str, list[Any]], beam: int, args: argparse.Namespace
) -> Contestants:
    tokenizer, room = translator.tokenizers.target, args.tokens + ROOM
    found: Contestants = {}
    if peer is not None:
        found = {OURS: peers.saccade_run(translator, beam), GENERATE: peers.marian_run(peer, tokenizer, beam, room)}
    for kind, made in engines.items():
        for engine, threads in zip(made, sorted({1, args.threads}, reverse=True), strict=True):
            found[f"{ENGINE} {kind}, {threads} threads"] = peers.ctranslate2_run(engine, tokenizer, beam, room)
    return found


def check(
    translator: Translator, peer: Any, engines: dict[str, list[Any]], case: tuple[int, int], args: argparse.Namespace
) -> dict[str, float]:
    """The share of sentences that each writes as `generate()` does, in float32: all, where nothing is quantised."""
    batch, beam = case
    sentences = texts(max(batch, 16), translator, seed=2)
    running = contestants(translator, peer, engines, beam, args)
    expected = running[GENERATE](sentences)
    distinct = sum(len(set(row)) for row in expected) / sum(map(len, expected))
    if distinct < 0.5 or len(set(map(tuple, expected))) < len(expected):
        raise SystemExit(f"only {distinct:.0%} of a sentence's tokens differ: equal answers would prove nothing")
    shares = {}
    for name, run in running.items():
        shares[name] = sum(a == b for a, b in zip(run(sentences), expected, strict=True)) / len(expected)
        if shares[name] < EQUAL[torch.device(args.device).type] and "int8" not in name:
            raise SystemExit(f"{name}, batch {batch}, beam {beam}: only {shares[name]:.1%} of the sentences are equal")
    return shares


def measure(
    translator: Translator, peer: Any, engines: dict[str, list[Any]], case: tuple[int, int], args: argparse.Namespace
) -> dict[str, Any]:
    batch, beam = case
    sentences = [texts(batch, translator, seed=3 + turn) for turn in range(args.rounds + args.warmup)]

    def timed(run: peers.Run) -> Callable[[], int]:
        turns = iter(sentences)
        return lambda: sum(map(len, run(next(turns))))

    foreign = Foreign()
    rates = in_turns(
        {name: timed(run) for name, run in contestants(translator, peer, engines, beam, args).items()},
        args.rounds,
        args.warmup,
        rest=0.3 if engines else 0.0,  # threads that have just worked go on spinning for a while
    )
    medians = {name: statistics.median(values) for name, values in rates.items()}
    return {"batch": batch, "beam": beam, "tokens_per_second": medians, "foreign": foreign.share()}


def setting(device: torch.device, args: argparse.Namespace) -> str:
    versions = [f"torch {torch.__version__}", f"transformers {version('transformers')}"]
    if importlib.util.find_spec("ctranslate2") is not None:
        versions.append(f"ctranslate2 {version('ctranslate2')}")
    hardware = processor() if device.type == "cpu" else describe_device(device)
    threads = f", {args.threads} threads" if device.type == "cpu" else ""
    return (
        f"{args.width} wide, {args.layers}+{args.layers} layers, vocabulary {args.vocabulary:,}, {args.tokens} tokens "
        f"out, {args.precision}; {hardware}{threads}; {', '.join(versions)}, Python {platform.python_version()}"
    )


def table(rows: list[dict[str, Any]], device: torch.device, args: argparse.Namespace) -> str:
    """Output tokens a second, CTranslate2 with whichever number of threads was quicker, and what ours is of theirs."""

    def best(row: dict[str, Any], kind: str) -> tuple[float, str] | None:
        found = [(rate, name) for name, rate in row["tokens_per_second"].items() if name.startswith(kind)]
        return max(found) if found else None

    kinds = [OURS, GENERATE, f"{ENGINE} float32", f"{ENGINE} int8"]
    lines = [
        f"| batch | beam | {' | '.join(kinds)} | ours is, of generate() | … of CTranslate2 float32 | others' CPU |",
        f"|{'---:|' * (len(kinds) + 5)}",
    ]
    for row in rows:
        cells = [best(row, kind) for kind in kinds]
        ours = cells[0][0] if cells[0] else 0.0
        rates = ["not installed" if cell is None else f"{cell[0]:,.0f}" for cell in cells]
        ratios = ["–" if cell is None else f"{ours / cell[0]:.2f}×" for cell in cells[1:3]]
        lines.append(
            f"| {row['batch']} | {row['beam']} | {' | '.join(rates)} | {' | '.join(ratios)} | {row['foreign']:.0%} |"
        )
    worst = max(row["foreign"] for row in rows)
    quantised = [share for row in rows for name, share in row["same"].items() if "int8" in name]
    alike = min(share for row in rows for name, share in row["same"].items() if "int8" not in name)
    equal = "the same tokens from all" if alike == 1 else f"{alike:.1%} of the sentences alike"
    notes = [setting(device, args), f"{equal} in float32"]
    if quantised:
        notes.append(f"int8 writes {min(quantised):.0%} to {max(quantised):.0%} of the sentences alike")
    if worst > 0.05 and device.type == "cpu":
        notes.append("others used the processor meanwhile: measure again")
    return "\n".join([*lines, "", "; ".join(notes) + "."])


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", choices=["float32", "bf16"])
    sizes = {"width": (256, 512), "feed-forward": (1024, 2048), "heads": (4, 8), "layers": (3, 6)}
    for name, (cpu, gpu) in {**sizes, "vocabulary": (8000, 32_000)}.items():
        parser.add_argument(f"--{name}", type=int, help=f"{cpu:,} on a CPU, {gpu:,} on a GPU")
    parser.add_argument("--tokens", type=int, default=32, help="tokens in every output")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--beam", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    on_cpu = torch.device(args.device).type == "cpu"
    args.precision = args.precision or ("float32" if on_cpu else "bf16")
    for name, (cpu, gpu) in {**sizes, "vocabulary": (8000, 32_000)}.items():
        key = name.replace("-", "_")
        setattr(args, key, getattr(args, key) or (cpu if on_cpu else gpu))
    return args


if __name__ == "__main__":
    main()
