"""The old corpus in fine-tuning: pairs of it that are trained on again, and those by which forgetting is measured.

Training on old pairs beside the new ones (rehearsal, Robins 1995; mixed fine-tuning, Chu et al. 2017) keeps a model
from forgetting what it knew. The old pairs come from files, or from the token store that the old folder still has.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from saccade.config import Config, DataConfig
from saccade.data.cleaning import CleaningReport, clean
from saccade.data.corpora import open_corpora
from saccade.data.store import Store
from saccade.data.tokenizers import Tokenizers
from saccade.errors import SaccadeError

Text = tuple[str, str]
SHARE = 0.2  # of the pairs, where files to replay are given and nothing else is said


class OldPairs(Protocol):
    """Pairs that can be walked through more than once."""

    def __iter__(self) -> Iterator[Text]: ...


@dataclass(frozen=True)
class StoredPairs:
    """The pairs of a token store, as text."""

    folder: Path

    def __iter__(self) -> Iterator[Text]:
        store, tokenizers = Store(self.folder), Tokenizers.load(self.folder.parent)
        for i in range(len(store)):
            source, target = store.pair(i)
            yield tokenizers.source.decode(source.tolist()), tokenizers.target.decode(target.tolist())


@dataclass(frozen=True)
class Replay:
    """Some of the old pairs, each as often as it is trained on."""

    old: OldPairs
    left_out: Collection[Text]
    times: npt.NDArray[np.int64]  # of each old pair that is not left out

    def __len__(self) -> int:
        return int(self.times.sum())

    def __iter__(self) -> Iterator[Text]:
        kept = (pair for pair in self.old if pair not in self.left_out)
        for pair, times in zip(kept, self.times, strict=True):
            for _ in range(times):
                yield pair

    def report(self) -> dict[str, Any]:
        return {"pairs": len(self), "of": len(self.times)}


class Validation(NamedTuple):
    """What the old folder was validated on."""

    where: str
    pairs: list[Text]


def share_of(data: DataConfig) -> float:
    """The share of training pairs that are old ones."""
    return data.replay_share if data.replay_share is not None else SHARE if data.replay else 0.0


def choose_replay(config: Config, base: Path, pairs: int, spooled: Callable[[], OldPairs]) -> Replay | None:
    """Old pairs beside `pairs` new ones, so that they are the share that the settings ask for; None: none.

    Drawn without repetition while there are enough; fewer than are wanted are all taken, equally often. A pair that
    the old folder is validated on is never trained on. `spooled`: reads the files of `data.replay`.
    """
    data, share = config.data, share_of(config.data)
    if not share:
        return None
    wanted = max(1, round(pairs * share / (1 - share)))
    old = spooled() if data.replay else _stored(base, "train")
    if old is None:
        raise SaccadeError(
            f"data.replay_share={share:g}: {base} no longer has the pairs it was trained on (resume/ was removed); "
            "name the files with data.replay=[…]"
        )
    known = old_validation(config, base)
    left_out = frozenset() if known is None else frozenset(known.pairs)
    count = sum(pair not in left_out for pair in old)
    if not count:
        raise SaccadeError(f"data.replay={data.replay}: no pair is left to replay; name the old training files")
    times = np.full(count, wanted // count)
    times[np.random.default_rng(data.seed).choice(count, wanted % count, replace=False)] += 1
    return Replay(old, left_out, times)


def old_validation(config: Config, base: Path) -> Validation | None:
    """The pairs by which the old folder is judged: files that are named, or what it has kept; None: there are none."""
    data = config.data
    if data.old_valid:
        return Validation(" ".join(data.old_valid), _read(data, data.old_valid))
    stored = _stored(base, "valid")
    if stored is not None:
        return Validation(f"the validation set of {base}", list(stored))
    before = Config.load(base / "config.yaml").data
    if before.valid and all(Path(name).is_file() for name in before.valid):
        return Validation(" ".join(before.valid), _read(before, before.valid))
    return None


def _stored(base: Path, name: str) -> StoredPairs | None:
    folder = base / "resume" / "data" / name
    return StoredPairs(folder) if folder.is_dir() else None


def _read(data: DataConfig, files: list[str]) -> list[Text]:
    corpora = open_corpora(
        files,
        source=data.source,
        target=data.target,
        source_field=data.source_field,
        target_field=data.target_field,
        monolingual=bool(data.monolingual),
    )
    report = CleaningReport()
    monolingual = bool(data.monolingual)
    return [pair[:2] for corpus in corpora for pair in clean(corpus, data.cleaning, report, monolingual)]
