"""From a corpus to token stores: read, clean, hold out, learn the tokenizer, encode. Each once, in constant memory.

Cleaned text passes through a spool on disk, so that a corpus which can be read only once (standard input) is enough.
Nothing of it stays: token stores decode to the exact text.
"""

import hashlib
import json
import math
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from saccade.config import Config, DataConfig, TokenizerConfig
from saccade.data.cleaning import CleaningReport, clean
from saccade.data.corpora import Corpus, Pair, open_corpora
from saccade.data.extending import extend, with_terms
from saccade.data.replay import choose_replay
from saccade.data.store import Store, StoreWriter
from saccade.data.tokenizers import Tokenizer, Tokenizers, share_letters, vocabulary_for
from saccade.display import Display
from saccade.errors import SaccadeError
from saccade.files import read_json, write_text

CHUNK = 10_000  # pairs encoded at once


class Prepared(NamedTuple):
    """All that training needs of a corpus."""

    config: Config  # with the choices that preparing made
    tokenizers: Tokenizers
    train: Store
    valid: Store
    report: dict[str, Any]  # what was read, kept and dropped, for the folder's records
    reasons: list[str]  # what was chosen, and why


def prepare(
    config: Config, folder: Path, display: Display, tokenizers: Tokenizers | None = None, base: Path | None = None
) -> Prepared:
    """Prepare `config.data` in `folder`, or find it prepared there already.

    `tokenizers`: use these, extended as the settings say, and learn none. `base`: the folder that is fine-tuned.
    """
    record = folder / "prepared.json"
    mark = fingerprint(config, tokenizers)
    if record.exists():
        known = read_json(record, "remove it to prepare the data again")
        if known["fingerprint"] == mark:
            resolved = config.with_changes(known["choices"])
            return Prepared(
                resolved,
                Tokenizers.load(folder),
                Store(folder / "train"),
                Store(folder / "valid"),
                known["report"],
                known["reasons"],
            )
        raise SaccadeError(
            f"{folder.parent.parent}: was prepared from other data or with other data and tokenizer settings; "
            "choose another --out, or start over with --restart"
        )
    # Without its record, what is here is what a run killed while preparing left.
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".spool.", suffix=".partial", dir=folder) as spool:
        return _prepare(config, folder, Path(spool), display, tokenizers, mark, base)


def _prepare(
    config: Config,
    folder: Path,
    spool: Path,
    display: Display,
    tokenizers: Tokenizers | None,
    mark: str,
    base: Path | None,
) -> Prepared:
    report = CleaningReport()
    everything = _spool(_training_corpora(config.data), config, report, spool / "train", display)
    for line in report.lines():
        display.say(line)
    if everything.pairs < 2:
        raise SaccadeError(
            f"{_describe(config.data)}: {everything.pairs} pairs are left of {report.read:,} after cleaning; "
            "at least 2 are needed. See what was dropped above; --no-clean keeps all"
        )
    reasons: list[str] = []
    if config.data.cleaning.enabled and math.isinf(config.data.cleaning.max_ratio):
        reasons.append("cleaning: a side may be any number of times as long as the other (data.cleaning.max_ratio)")
    choices: dict[str, dict[str, Any]] = {}
    held_out, valid = _validation(config, everything, spool, display)
    if held_out:
        choices["data"] = {"valid_pairs": len(held_out)}
        reasons.append(f"validation: {len(held_out):,} pairs held out of training (no validation files were given)")
    pairs = everything.pairs - len(held_out)
    if tokenizers is None:
        tokenizers, chosen, why = _learn_tokenizers(config, everything, set(held_out), display)
        choices["tokenizer"] = chosen
        reasons.append(why)
    else:
        tokenizers, grown = _extend_tokenizers(tokenizers, config, everything, set(held_out))
        reasons += [grown] if grown else []
        kind, size = tokenizers.target.kind, max(300, tokenizers.target.size)
        choices["tokenizer"] = {"kind": kind, "joint": tokenizers.joint, "vocabulary": size}

    skipped = set(held_out)
    kept: Iterable[tuple[str, str]] = (pair for i, pair in enumerate(everything) if i not in skipped)
    replay = None if base is None else choose_replay(config, base, pairs, lambda: _spool_replay(config, spool, display))
    if replay is not None:
        reasons.append(f"replay: {len(replay):,} old pairs beside {pairs:,} new ones (data.replay_share)")
        kept, pairs = chain(kept, replay), pairs + len(replay)
    _encode(kept, pairs, tokenizers, folder / "train", "encoding", display)
    if held_out:
        valid_pairs: Iterable[tuple[str, str]] = (pair for i, pair in enumerate(everything) if i in skipped)
        _encode(valid_pairs, len(held_out), tokenizers, folder / "valid", "encoding validation", display)
    else:
        _encode(valid, valid.pairs, tokenizers, folder / "valid", "encoding validation", display)
    tokenizers.save(folder)
    summary = report.to_dict() | {"train_pairs": pairs, "corpus": _describe(config.data)}
    summary |= {} if replay is None else {"replay": replay.report()}
    write_text(
        folder / "prepared.json",
        json.dumps({"fingerprint": mark, "choices": choices, "reasons": reasons, "report": summary}, indent=1),
    )
    return Prepared(
        config.with_changes(choices), tokenizers, Store(folder / "train"), Store(folder / "valid"), summary, reasons
    )


def check_corpora(data: DataConfig) -> None:
    """Refuse files that are not there and locales that are not known, before anything is done."""
    for files in (data.replay, data.old_valid):
        if files:
            _corpora(data, files, BuiltinCorpus(data, "train", 1))
    for files, split in ((data.train, "train"), (data.valid, "valid")):
        corpora = _corpora(data, files, BuiltinCorpus(data, split, 1))
        if not data.train:
            for corpus in corpora:
                next(iter(corpus))


def fingerprint(config: Config, tokenizers: Tokenizers | None) -> str:
    """Changes when anything that preparing depends on does: settings, files, the tokenizer given."""
    files = []
    for name in [*config.data.train, *config.data.valid, *config.data.replay]:
        path = Path(name)
        files.append([name, path.stat().st_size, path.stat().st_mtime_ns] if path.is_file() else [name])
    sizes = None if tokenizers is None else [tokenizers.source.size, tokenizers.target.size, tokenizers.joint]
    settings = [config.data.model_dump(mode="json"), config.tokenizer.model_dump(mode="json"), files, sizes]
    return hashlib.sha256(json.dumps(settings).encode()).hexdigest()


@dataclass(frozen=True)
class BuiltinCorpus:
    """The first pairs of the corpus that Saccade makes itself."""

    settings: DataConfig
    split: str
    pairs: int

    @property
    def name(self) -> str:
        return f"built-in {self.settings.source}-{self.settings.target} {self.split}"

    def __iter__(self) -> Iterator[Pair]:
        from saccade.data import builtin  # Babel's data is loaded only when it is used

        endless = builtin.pairs(self.settings.source, self.settings.target, seed=self.settings.seed, split=self.split)  # type: ignore[arg-type]
        for line, (source, target) in enumerate(islice(endless, self.pairs), start=1):
            yield Pair("" if self.settings.monolingual else source, target, line)


@dataclass(frozen=True)
class Spooled:
    """Cleaned pairs on disk, one line each."""

    source: Path
    target: Path
    pairs: int

    def __iter__(self) -> Iterator[tuple[str, str]]:
        with (
            open(self.source, encoding="utf-8", newline="\n") as sources,
            open(self.target, encoding="utf-8", newline="\n") as targets,
        ):
            for source, target in zip(sources, targets, strict=True):
                yield source[:-1], target[:-1]


def _spool(corpora: Iterable[Corpus], config: Config, report: CleaningReport, path: Path, display: Display) -> Spooled:
    spooled = Spooled(path.with_suffix(".source"), path.with_suffix(".target"), 0)
    with (
        open(spooled.source, "w", encoding="utf-8", newline="\n") as sources,
        open(spooled.target, "w", encoding="utf-8", newline="\n") as targets,
        display.task("reading and cleaning") as progress,
    ):
        before = report.kept
        for corpus in corpora:
            for source, target, _ in clean(corpus, config.data.cleaning, report, bool(config.data.monolingual)):
                sources.write(source + "\n")
                targets.write(target + "\n")
                if report.kept % 1000 == 0:
                    progress(report.kept)
        progress(report.kept)
    return replace(spooled, pairs=report.kept - before)


def _spool_replay(config: Config, spool: Path, display: Display) -> Spooled:
    report = CleaningReport()
    corpora = _corpora(config.data, config.data.replay, BuiltinCorpus(config.data, "train", 1))
    spooled = _spool(corpora, config, report, spool / "replay", display)
    if report.dropped:
        display.say("replay:")
        for line in report.lines():
            display.say(line)
    return spooled


def _training_corpora(data: DataConfig) -> list[Corpus]:
    return _corpora(data, data.train, BuiltinCorpus(data, "train", data.builtin_pairs))


def _corpora(data: DataConfig, files: list[str], otherwise: BuiltinCorpus) -> list[Corpus]:
    if not files:
        return [otherwise]
    return open_corpora(
        files,
        source=data.source,
        target=data.target,
        source_field=data.source_field,
        target_field=data.target_field,
        monolingual=bool(data.monolingual),
    )


def _validation(config: Config, everything: Spooled, spool: Path, display: Display) -> tuple[list[int], Spooled]:
    """Either which training pairs to hold out, or the validation corpus, cleaned."""
    data = config.data
    if data.valid or not data.train:
        corpora = _corpora(data, data.valid, BuiltinCorpus(data, "valid", data.valid_pairs or 500))
        report = CleaningReport()
        valid = _spool(corpora, config, report, spool / "valid", display)
        if report.dropped:
            display.say("validation:")
            for line in report.lines():
                display.say(line)
        if not valid.pairs:
            raise SaccadeError(f"data.valid={data.valid}: no pair is left of {report.read:,} after cleaning")
        return [], valid
    count = data.valid_pairs or max(1, min(2000, everything.pairs // 20))
    if count >= everything.pairs:
        raise SaccadeError(
            f"data.valid_pairs={count} leaves nothing to train on: the corpus has {everything.pairs} pairs; "
            "hold out fewer or give validation files"
        )
    chosen = np.random.default_rng(data.seed).choice(everything.pairs, size=count, replace=False)
    return sorted(int(i) for i in chosen), Spooled(spool, spool, 0)


def _learn_tokenizers(
    config: Config, corpus: Spooled, held_out: set[int], display: Display
) -> tuple[Tokenizers, dict[str, Any], str]:
    settings, pairs = config.tokenizer, corpus.pairs - len(held_out)
    size = settings.vocabulary or vocabulary_for(pairs)
    sample = _sampler(settings, corpus, held_out)
    shared = share_letters((source for source, _ in sample()), (target for _, target in sample()))
    joint = shared > 0.5 if settings.joint is None else settings.joint
    with display.task(f"learning the {settings.kind} vocabulary"):
        if joint:
            tokenizer = Tokenizer.train((side for pair in sample() for side in pair), settings.kind, size)
            tokenizer = with_terms(tokenizer, settings.terms)
            tokenizers = Tokenizers(tokenizer, tokenizer)
        else:
            source = Tokenizer.train((source for source, _ in sample()), settings.kind, size)
            target = Tokenizer.train((target for _, target in sample()), settings.kind, size)
            tokenizers = Tokenizers(with_terms(source, settings.terms), with_terms(target, settings.terms))
    sizes = f"{tokenizers.source.size:,}" if joint else f"{tokenizers.source.size:,} + {tokenizers.target.size:,}"
    why = f"vocabulary: {sizes} {settings.kind} pieces, "
    if config.data.monolingual:
        why += f"of one side ({pairs:,} lines)"
    else:
        why += (
            f"{'joint' if joint else 'separate'} ({pairs:,} pairs; the two sides share {shared:.0%} of their letters)"
        )
    return tokenizers, {"joint": joint, "vocabulary": size}, why


def _sampler(settings: TokenizerConfig, corpus: Spooled, held_out: set[int]) -> Callable[[], Iterator[tuple[str, str]]]:
    """What a vocabulary is learned from: every so many-th pair, so that all files are heard."""
    step = -(-corpus.pairs // settings.sample)
    return lambda: (pair for i, pair in enumerate(corpus) if i % step == 0 and i not in held_out)


def _extend_tokenizers(
    tokenizers: Tokenizers, config: Config, corpus: Spooled, held_out: set[int]
) -> tuple[Tokenizers, str | None]:
    sample = _sampler(config.tokenizer, corpus, held_out)
    sources, targets = (lambda: (s for s, _ in sample())), (lambda: (t for _, t in sample()))
    return extend(tokenizers, config.tokenizer, sources, targets)


def _encode(
    pairs: Iterable[tuple[str, str]], count: int, tokenizers: Tokenizers, folder: Path, what: str, display: Display
) -> None:
    iterator = iter(pairs)
    sizes = {"source_vocabulary": tokenizers.source.size, "target_vocabulary": tokenizers.target.size}
    with StoreWriter(folder, **sizes) as writer, display.task(what, count) as progress:
        done = 0
        while chunk := list(islice(iterator, CHUNK)):
            sources = tokenizers.source.encode_batch([source for source, _ in chunk])
            targets = tokenizers.target.encode_batch([target for _, target in chunk])
            writer.extend(zip(sources, targets, strict=True))
            done += len(chunk)
            progress(done)


def _describe(data: DataConfig) -> str:
    return " ".join(data.train) if data.train else f"built-in {data.source}-{data.target}"
