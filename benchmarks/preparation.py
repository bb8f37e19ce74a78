"""Preparing and training on a large corpus: time grows with the pairs, memory does not.

    python -m benchmarks.preparation --pairs 500000 1000000 5000000

For each size, in a process of its own: sentences are written to two files, prepared (cleaned, a tokenizer learned,
encoded), and trained on for a few steps by a tiny model. Resident memory is the peak of the process beyond what it has
before it starts, torch and Saccade imported.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
from rich.console import Console
from rich.table import Table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, nargs="+", default=[500_000, 1_000_000, 2_000_000, 5_000_000])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        measure(args.worker, args.steps)
        return
    table = Table(title="preparing and training", title_justify="left")
    for column in ("pairs", "written in", "prepared in", "pairs/s", "trained in", "peak MB beyond start"):
        table.add_column(column, justify="right")
    for pairs in args.pairs:
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            write_corpus(Path(folder), pairs)
            written = time.perf_counter() - start
            command = [sys.executable, "-m", "benchmarks.preparation", "--worker", folder, "--steps", str(args.steps)]
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            row = json.loads(output.splitlines()[-1])
        table.add_row(
            f"{pairs:,}",
            f"{written:.0f} s",
            f"{row['prepared']:.0f} s",
            f"{pairs / row['prepared']:,.0f}",
            f"{row['trained']:.0f} s",
            f"{row['peak']:,.0f}",
        )
        Console(width=110).print(table)


def write_corpus(folder: Path, pairs: int) -> None:
    """Sentences of 8 to 20 words drawn from a vocabulary with Zipf's frequencies: every pair differs."""
    random = np.random.default_rng(1)
    letters = np.array(list("etaoinshrdlucmfwypvbgk"))
    words = np.array(["".join(random.choice(letters, size=random.integers(2, 11))) for _ in range(60_000)])
    with open(folder / "big.en", "w") as source, open(folder / "big.de", "w") as target:
        for start in range(0, pairs, 50_000):
            count = min(50_000, pairs - start)
            lengths = random.integers(8, 21, size=count)
            ranks = np.minimum(random.zipf(1.3, size=lengths.sum()) - 1, len(words) - 1)
            for sentence in np.split(ranks, np.cumsum(lengths)[:-1]):
                source.write(" ".join(words[sentence]) + "\n")
                target.write(" ".join(words[sentence[::-1]]) + "!\n")


def measure(folder: Path, steps: int) -> None:
    import threading

    from saccade.api import settings_from
    from saccade.display import Display
    from saccade.training.run import prepare_folder, train

    process = psutil.Process()
    before = process.memory_info().rss
    peak = before
    over = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not over.wait(0.05):
            peak = max(peak, process.memory_info().rss)

    threading.Thread(target=watch, daemon=True).start()
    config = settings_from(
        [
            str(folder / "big.en"),
            str(folder / "big.de"),
            "model.size=tiny",
            "tokenizer.vocabulary=8000",
            f"training.max_steps={steps}",
            f"training.validate_every={steps}",
            "training.validate_bleu_pairs=0",
            "training.batch_tokens=2048",
        ]
    )
    start = time.perf_counter()
    prepare_folder(config, folder / "run", display=Display(quiet=True))
    prepared = time.perf_counter() - start
    start = time.perf_counter()
    train(config, folder / "run", display=Display(quiet=True))
    trained = time.perf_counter() - start
    over.set()
    print(json.dumps({"prepared": prepared, "trained": trained, "peak": (peak - before) / 2**20}))


if __name__ == "__main__":
    main()
