"""From a corpus to token stores: read, clean, hold out, learn the tokenizer, encode. Each once, in constant memory.

Cleaned text passes through a spool on disk, so that a corpus which can be read only once (standard input) is enough.
Nothing of it stays: token stores decode to the exact text.
"""

import hashlib
import json
import math
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from saccade.config import Config, DataConfig
from saccade.data.cleaning import CleaningReport
from saccade.data.corpora import Corpus, Pair
from saccade.data.extending import begins_with
from saccade.data.mapping import Here, Mapper
from saccade.data.mixture import (
    Member,
    Part,
    apportioned,
    check_mixture,
    lines_of,
    name_of,
    open_files,
    open_members,
    open_validation,
    shares,
    told,
)
from saccade.data.provenance import check_files, check_names, files_of, size_and_time, states_of
from saccade.data.replay import choose_replay
from saccade.data.sampling import check_stream, draw_sample
from saccade.data.spool import Spool, Spooled
from saccade.data.store import Store
from saccade.data.tokenizers import Tokenizers
from saccade.data.vocabulary import extend_tokenizers, learn_tokenizers, sampler
from saccade.display import Display
from saccade.errors import SaccadeError
from saccade.files import digest, read_json, write_text
from saccade.folder import WEIGHTS


class Prepared(NamedTuple):
    """All that training needs of a corpus."""

    config: Config  # with the choices that preparing made
    tokenizers: Tokenizers
    train: Store
    valid: Store
    report: dict[str, Any]  # what was read, kept and dropped, for the folder's records
    reasons: list[str]  # what was chosen, and why

    @property
    def pairs(self) -> int:
        """How many pairs there are to train on, if only about; of a stream, `train` is a sample."""
        return int(self.report["train_pairs"])

    @property
    def mixture(self) -> list[Part]:
        """The corpora that the store holds, if it is a mixture."""
        if self.config.data.stream:
            return []
        return [Part(row["pairs"], row["taken"]) for row in self.report.get("mixture", [])]


def prepare(
    config: Config,
    folder: Path,
    display: Display,
    tokenizers: Tokenizers | None = None,
    base: Path | None = None,
    mapper: Mapper | None = None,
) -> Prepared:
    """Prepare `config.data` in `folder`, or find it prepared there already.

    `tokenizers`: use these, extended as the settings say, and learn none. `base`: the folder that is fine-tuned.
    `mapper`: where blocks of pairs are judged and encoded.
    """
    record = folder / "prepared.json"
    mark = fingerprint(config, tokenizers)
    if record.exists():
        known = read_json(record, "remove it to prepare the data again")
        # Runs begun before what files hold was kept have their sizes and times in the mark.
        if known["fingerprint"] == (mark if "files" in known else fingerprint(config, tokenizers, states=True)):
            check_files(known.get("files", {}), config.data, folder.parent.parent, display)
            resolved = config.with_changes(known["choices"])
            learned = Tokenizers.load(folder)
            before = known.get("from", {})
            other = bool(before) and base is not None and not before.items() & _named(base).items()
            if other or (tokenizers is not None and not all(map(begins_with, learned, tokenizers))):
                raise SaccadeError(
                    f"{folder.parent.parent}: was prepared for another folder than --from {base}"
                    f"{' (' + before['folder'] + ')' if before else ''}; name that one to go on, choose another "
                    "--out, or start over with --restart"
                )
            return Prepared(
                resolved,
                learned,
                Store(folder / "train"),
                Store(folder / "valid"),
                known["report"],
                known["reasons"],
            )
        if "files" in known:
            check_names(known["files"], config.data, folder.parent.parent)
        raise SaccadeError(
            f"{folder.parent.parent}: was prepared from other data, with other data or tokenizer settings, or with "
            "another --from; give what was given then to go on, choose another --out, or start over with --restart"
        )
    # Without its record, what is here is what a run killed while preparing left.
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    begun = {"fingerprint": mark, "files": states_of(config.data)}  # as they are before they are read
    with tempfile.TemporaryDirectory(prefix=".spool.", suffix=".partial", dir=folder) as place:
        spool = Spool(Path(place), config, display, mapper or Here())
        return _prepare(config, folder, spool, display, tokenizers, begun, base)


def _named(base: Path) -> dict[str, str]:
    """By what a folder that is fine-tuned is known again: where it lies, or what it holds; either may have changed."""
    return {"folder": str(base.resolve()), "weights": digest(base / WEIGHTS)}


def _prepare(
    config: Config,
    folder: Path,
    spool: "Spool",
    display: Display,
    tokenizers: Tokenizers | None,
    begun: dict[str, Any],
    base: Path | None,
) -> Prepared:
    report = CleaningReport()
    members = training_members(config.data)
    corpus = draw_sample(config.data, members, display) if config.data.stream else None
    everything = spool.filled("train", members if corpus is None else corpus.drawn, report)
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
    held_out, valid = _validation(config, everything, spool)
    if held_out:
        choices["data"] = {"valid_pairs": len(held_out)}
        reasons.append(f"validation: {len(held_out):,} pairs held out of training (no validation files were given)")
    pairs = everything.pairs - len(held_out)
    mixed = _mixed(config.data, members, everything, held_out) if corpus is None else corpus.report
    reasons += [*lines_of(mixed), *([] if corpus is None else corpus.reasons)]
    if tokenizers is None:
        heard = sampler(config.tokenizer, everything, set(held_out), [row["share"] for row in mixed])
        many = pairs if corpus is None else corpus.pairs
        tokenizers, chosen, why = learn_tokenizers(config, heard, many, display)
        choices["tokenizer"] = chosen
        reasons.append(why)
    else:
        tokenizers, grown = extend_tokenizers(tokenizers, config, everything, set(held_out))
        reasons += [grown] if grown else []
        kind, size = tokenizers.target.kind, max(300, tokenizers.target.size)
        choices["tokenizer"] = {"kind": kind, "joint": tokenizers.joint, "vocabulary": size}

    skipped = set(held_out)
    kept: Iterable[tuple[str, str]] = (pair for i, pair in enumerate(everything) if i not in skipped)
    replay = None if base is None else choose_replay(config, base, pairs, lambda: _spool_replay(config, spool))
    if replay is not None:
        reasons.append(f"replay: {len(replay):,} old pairs beside {pairs:,} new ones (data.replay_share)")
        kept, pairs = chain(kept, replay), pairs + len(replay)
    spool.encode(kept, pairs, tokenizers, folder / "train", "encoding")
    if held_out:
        valid_pairs: Iterable[tuple[str, str]] = (pair for i, pair in enumerate(everything) if i in skipped)
        spool.encode(valid_pairs, len(held_out), tokenizers, folder / "valid", "encoding validation")
    else:
        spool.encode(valid, valid.pairs, tokenizers, folder / "valid", "encoding validation")
    tokenizers.save(folder)
    summary = report.to_dict() | {"train_pairs": pairs, "corpus": _describe(config.data)}
    summary |= {"mixture": mixed} if mixed else {}
    summary |= {} if replay is None else {"replay": replay.report()}
    summary |= {} if corpus is None else {"train_pairs": corpus.pairs, "sampled": pairs, "held_out": bool(held_out)}
    known = begun | {"choices": choices, "reasons": reasons, "report": summary}
    known |= {} if base is None else {"from": _named(base)}
    write_text(folder / "prepared.json", json.dumps(known, indent=1))
    return Prepared(
        config.with_changes(choices), tokenizers, Store(folder / "train"), Store(folder / "valid"), summary, reasons
    )


def check_corpora(data: DataConfig) -> None:
    """Refuse files that are not there and locales that are not known, before anything is done."""
    check_mixture(data)
    for files in (data.replay, data.old_valid):
        if files:
            open_files(data, files)
    open_members(data)
    open_validation(data)
    if data.stream:
        check_stream(data)
    if data.mixture:
        return
    for files, split in ((data.train, "train"), (data.valid, "valid")):
        corpora = _corpora(data, files, BuiltinCorpus(data, split, 1))
        if not data.train:
            for corpus in corpora:
                next(iter(corpus))


def fingerprint(config: Config, tokenizers: Tokenizers | None, states: bool = False) -> str:
    """Changes when anything that preparing depends on does: settings, names of files, the tokenizer given.

    `states`: the sizes and times of files too.
    """
    data = config.data
    files = [[name, *(size_and_time(name) if states else ())] for name in files_of(data)]
    sizes = None if tokenizers is None else [tokenizers.source.size, tokenizers.target.size, tokenizers.joint]
    settings = [data.model_dump(mode="json"), config.tokenizer.model_dump(mode="json"), files, sizes]
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


def _spool_replay(config: Config, spool: Spool) -> Spooled:
    report = CleaningReport()
    spooled = spool.filled("replay", [Member("replay", open_files(config.data, config.data.replay))], report)
    if report.dropped:
        spool.display.say("replay:")
        for line in report.lines():
            spool.display.say(line)
    return spooled


def training_members(data: DataConfig) -> list[Member]:
    """The corpora to train on: those of a mixture, or one of all files."""
    if data.mixture:
        return open_members(data)
    return [Member(_describe(data), _corpora(data, data.train, BuiltinCorpus(data, "train", data.builtin_pairs)))]


def _corpora(data: DataConfig, files: list[str], otherwise: BuiltinCorpus) -> list[Corpus]:
    return open_files(data, files) if files else [otherwise]


def _mixed(
    data: DataConfig, members: Sequence[Member], everything: Spooled, held_out: Sequence[int]
) -> list[dict[str, Any]]:
    """The proportions of a mixture; nothing where there is one corpus."""
    if not data.mixture:
        return []
    ends = np.cumsum(everything.sizes)
    lost = np.bincount(np.searchsorted(ends, np.array(held_out, int), side="right"), minlength=len(members))
    sizes = [int(size) for size in np.array(everything.sizes) - lost]
    for member, size in zip(members, sizes, strict=True):
        if size < 1:
            raise SaccadeError(f"data.mixture: no pair of {member.name} is left to train on; see what was dropped")
    share = shares(sizes, [member.weight for member in members], data.temperature)
    return told([member.name for member in members], sizes, apportioned(share, sum(sizes)))


def _validation(config: Config, everything: Spooled, spool: Spool) -> tuple[list[int], Spooled]:
    """Either which training pairs to hold out, or the validation corpus, cleaned."""
    data = config.data
    members = open_validation(data)
    if members or data.valid or not (data.train or data.mixture):
        builtin = BuiltinCorpus(data, "valid", data.valid_pairs or 500)
        members = members or [Member("validation", _corpora(data, data.valid, builtin))]
        report = CleaningReport()
        valid = spool.filled("valid", members, report)
        if report.dropped:
            spool.display.say("validation:")
            for line in report.lines():
                spool.display.say(line)
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
    return sorted(int(i) for i in chosen), Spooled(spool.folder, spool.folder)


def _describe(data: DataConfig) -> str:
    if data.mixture:
        return " + ".join(map(name_of, data.mixture))
    return " ".join(data.train) if data.train else f"built-in {data.source}-{data.target}"
