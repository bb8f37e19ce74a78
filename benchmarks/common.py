"""What the benchmarks share: sentences of real lengths, honest timing, a table at the end."""

import os
import platform
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

# Lengths in pieces of Multi30k's training pairs (joint BPE of 8,000): log-normal fits of the two sides and how they go
# together. `python -m benchmarks.common SOURCE TARGET` fits them anew.
MULTI30K_LENGTHS = {"mean": (2.597, 2.610), "sigma": (0.317, 0.350), "correlation": 0.86}

Ids = list[int]


def pairs_like_multi30k(count: int, vocabulary: int, seed: int = 1) -> list[tuple[Ids, Ids]]:
    """Random ids in sentences as long as Multi30k's; a target is a permutation of words, so that it can be learned."""
    random = np.random.default_rng(seed)
    fit = MULTI30K_LENGTHS
    noise = random.multivariate_normal([0, 0], [[1, fit["correlation"]], [fit["correlation"], 1]], size=count)
    lengths = np.exp(np.array(fit["mean"]) + np.array(fit["sigma"]) * noise).round().clip(2, 60).astype(int)
    pairs = []
    for source_length, target_length in lengths:
        source = random.integers(4, vocabulary, source_length)
        target = (np.resize(source, target_length) * 7 + 13) % (vocabulary - 4) + 4
        pairs.append((source.tolist(), target.tolist()))
    return pairs


class Foreign:
    """The share of the machine's CPU time that others took while we measured; above 0.05, measure again."""

    def __init__(self) -> None:
        self.machine, self.own = self._machine(), self._own()

    @staticmethod
    def _machine() -> tuple[int, int]:
        with open("/proc/stat") as file:
            fields = [int(field) for field in file.readline().split()[1:9]]
        return sum(fields), sum(fields) - fields[3] - fields[4]

    @staticmethod
    def _own() -> float:
        times = os.times()
        return (times.user + times.system + times.children_user + times.children_system) * os.sysconf("SC_CLK_TCK")

    def share(self) -> float:
        (total, busy), own = self._machine(), self._own()
        others = (busy - self.machine[1]) - (own - self.own)
        return max(0.0, others) / max(1, total - self.machine[0])


def in_turns(
    contestants: dict[str, Callable[[], int]], rounds: int, warmup: int = 2, rest: float = 0.0
) -> dict[str, list[float]]:
    """Tokens per second of each, measured in turns so that a slow minute of the machine hits all of them alike.

    `rest`: seconds between two turns. Threads of one library go on spinning for a while after its work is done, and
    would take the processor from the next.
    """
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(warmup + rounds):
        for name, run in contestants.items():
            time.sleep(rest)
            start = time.perf_counter()
            tokens = run()
            if turn >= warmup:
                rates[name].append(tokens / (time.perf_counter() - start))
    return rates


def report(title: str, rates: dict[str, list[float]], ours: str, unit: str, foreign: float) -> None:
    """A table of medians, with each contestant's rate against ours."""
    table = Table(title=title, title_justify="left")
    for column in ("", unit, "lowest", "highest", "ours is"):
        table.add_column(column, justify="left" if not column else "right")
    own = statistics.median(rates[ours])
    for name, values in rates.items():
        median = statistics.median(values)
        ratio = "" if name == ours else f"{own / median:.2f}×"
        table.add_row(name, f"{median:,.0f}", f"{min(values):,.0f}", f"{max(values):,.0f}", ratio)
    console = Console(width=110)
    console.print(table)
    console.print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, {processor()}, "
        f"Python {platform.python_version()}; "
        f"others took {foreign:.1%} of the CPU{' — measure again' if foreign > 0.05 else ''}",
        highlight=False,
    )


def processor() -> str:
    """The processor's name."""
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def _fit(source: str, target: str) -> None:
    """Print the fit of two text files' lengths under a joint BPE of 8,000."""
    from saccade.data.corpora import read_lines
    from saccade.data.tokenizers import Tokenizer

    sides = [list(read_lines(source)), list(read_lines(target))]
    tokenizer = Tokenizer.train([line for side in sides for line in side], "bpe", 8000)
    logs = np.log([[len(ids) for ids in tokenizer.encode_batch(side)] for side in sides])
    print("mean", logs.mean(1).round(3), "sigma", logs.std(1).round(3), "correlation", np.corrcoef(logs)[0, 1].round(2))


if __name__ == "__main__":
    import sys

    _fit(*sys.argv[1:3])
