"""Parallel files lower-cased and Moses-tokenised, as papers prepare them; on request several pairs joined into one.

    python -m benchmarks.moses SOURCE.de.gz TARGET.en.gz --out long.de.gz long.en.gz --join 3

`--join N` makes pair after pair of 1, 2, … N lines joined (then 1 again), so that a corpus of short sentences has long
inputs too; every line is used once.
"""

import argparse
import gzip
from collections.abc import Iterable, Iterator
from itertools import cycle
from pathlib import Path

from sacremoses import MosesPunctNormalizer, MosesTokenizer

from saccade.data.lines import read_lines
from saccade.files import written_atomically


def prepared(path: str, language: str) -> Iterator[str]:
    """Lines as Moses cuts them, lower-cased."""
    normalise, tokenize = MosesPunctNormalizer(language).normalize, MosesTokenizer(language).tokenize
    for line in read_lines(path):
        yield tokenize(normalise(line), return_str=True, escape=False).lower()


def joined(pairs: Iterable[tuple[str, str]], most: int) -> Iterator[tuple[str, str]]:
    """1, 2, … `most` pairs at a time, as one."""
    sizes = cycle(range(1, most + 1))
    wanted, held = next(sizes), []
    for pair in pairs:
        held.append(pair)
        if len(held) == wanted:
            yield " ".join(source for source, _ in held), " ".join(target for _, target in held)
            wanted, held = next(sizes), []
    for pair in held:
        yield pair


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs=2)
    parser.add_argument("--languages", nargs=2, default=("de", "en"))
    parser.add_argument("--out", nargs=2, required=True)
    parser.add_argument("--join", type=int, default=1)
    given = parser.parse_args()
    sides = (prepared(path, language) for path, language in zip(given.files, given.languages, strict=True))
    made = list(joined(zip(*sides, strict=True), given.join))
    for path, lines in zip(given.out, zip(*made, strict=True), strict=True):
        with written_atomically(Path(path)) as part, gzip.GzipFile(part, "wb", mtime=0) as file:
            file.write("".join(line + "\n" for line in lines).encode())
    longest = max(len(source.split()) for source, _ in made)
    print(f"{len(made):,} pairs, sources of at most {longest} tokens")


if __name__ == "__main__":
    main()
