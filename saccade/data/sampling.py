"""What is known of a stream before it is trained on: a sample of it, its size, and how much of each corpus it takes."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from saccade.config import Config, DataConfig
from saccade.data.cleaning import digest_of
from saccade.data.mixture import Member, apportioned, shares, told
from saccade.data.pairs import Corpus, Pair
from saccade.data.replay import StoredPairs
from saccade.data.shards import ShardedCorpus
from saccade.data.store import Store
from saccade.data.streams import Encoder, Source, Stream
from saccade.data.tokenizers import Tokenizers
from saccade.display import Display
from saccade.errors import SaccadeError


class Sampled(NamedTuple):
    """A sample of each corpus, and what it says of the whole."""

    drawn: list[Member]
    pairs: int  # of the whole, if only about
    report: list[dict[str, Any]]  # the proportions of a mixture
    reasons: list[str]


class Excerpt:
    """Some pairs of a file."""

    def __init__(self, name: str, pairs: Sequence[Pair]) -> None:
        self.name = name
        self.pairs = pairs

    def __iter__(self) -> Iterator[Pair]:
        return iter(self.pairs)


def check_stream(data: DataConfig) -> None:
    """Refuse what cannot be streamed."""
    if not data.train and not data.mixture:
        raise SaccadeError("data.stream=true reads files; name them, or leave it out to train on the built-in corpus")
    if data.replay or data.replay_share:
        raise SaccadeError(
            "data.replay and data.replay_share draw from a whole corpus, which data.stream=true never has; make the "
            "old corpus one of data.mixture, with a weight of its own"
        )


def draw_sample(data: DataConfig, members: Sequence[Member], display: Display) -> Sampled:
    """Read `data.stream_sample` pairs here and there."""
    corpora = sharded(data, members)
    rows: list[list[tuple[str, Pair]]] = []
    sizes, exact = [], True
    with display.task("drawing a sample", data.stream_sample) as progress:
        for corpus in corpora:
            blocks = corpus.sample(-(-data.stream_sample // len(corpora)))
            rows.append([(name, pair) for name, pairs in blocks for pair in pairs])
            size, known = corpus.size([pair[:2] for _, pair in rows[-1]])
            sizes.append(size)
            exact = exact and known
            progress(sum(map(len, rows)))
    share = shares(sizes, [member.weight for member in members], data.temperature)
    taken = apportioned(share, data.stream_window)
    drawn = [
        Member(member.name, _fewer(some, round(data.stream_sample * part), data.seed), tag=member.tag)
        for member, some, part in zip(members, rows, share, strict=True)
    ]
    total, files = sum(sizes), sum(len(corpus.shards) for corpus in corpora)
    about = "" if exact else "about "
    reasons = [
        f"stream: {about}{total:,} pairs in {files:,} files, a window of {data.stream_window:,} at a time; what was "
        "kept and dropped so far is of a sample",
    ]
    if data.cleaning.enabled and data.cleaning.drop_duplicates:
        reasons.append("stream: duplicates are dropped within a window, not beyond it")
    report = told([member.name for member in members], sizes, taken, not exact) if data.mixture else []
    return Sampled(drawn, total, report, reasons)


def sharded(data: DataConfig, members: Sequence[Member]) -> list[ShardedCorpus]:
    """The files of each corpus, with a seed of its own."""
    return [
        ShardedCorpus.of(member.name, member.corpora, (data.seed % 2**64, number), data.stream_interleave)
        for number, member in enumerate(members)
    ]


def open_stream(
    config: Config,
    members: Sequence[Member],
    tokenizers: Tokenizers,
    valid: Store,
    report: dict[str, Any],
    *,
    longest: int | None,
    together: bool,
) -> Stream:
    """The stream that a run trains on. `longest` and `together`: what the model's positions hold, as in `Encoder`."""
    data, training = config.data, config.training
    held_out = frozenset(digest_of(*pair) for pair in StoredPairs(valid.folder)) if report["held_out"] else frozenset()
    taken = [row["taken"] for row in report["mixture"]] if data.mixture else [data.stream_window]
    encode = Encoder(
        tokenizers,
        data.cleaning,
        bool(data.monolingual),
        held_out,
        longest,
        together,
        training.subword_dropout,
        training.seed % 2**64,
    )
    sources = [
        Source(corpus, member.prefix, count)
        for corpus, member, count in zip(sharded(data, members), members, taken, strict=True)
    ]
    return Stream(sources, encode, report["train_pairs"], training.stream_workers)


def _fewer(rows: Sequence[tuple[str, Pair]], most: int, seed: int) -> list[Corpus]:
    """At most so many of the rows, by the files that they are of."""
    if len(rows) > max(1, most):
        chosen = np.random.default_rng(seed % 2**64).choice(len(rows), max(1, most), replace=False)
        rows = [rows[i] for i in sorted(chosen.tolist())]
    return [Excerpt(name, [pair for _, pair in of_it]) for name, of_it in groupby(rows, itemgetter(0))]
