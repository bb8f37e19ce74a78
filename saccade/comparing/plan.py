"""What a comparison is made of: rows, each trained with several seeds, all on the same pairs."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from saccade.config import Config, names_of, read_settings
from saccade.config.data import DataConfig
from saccade.data.corpora import expanded
from saccade.data.lines import STANDARD_INPUT, read_lines
from saccade.errors import SaccadeError
from saccade.evaluation.alignment import check_links, read_pharaoh
from saccade.files import digest, write_text
from saccade.folder import CONFIG, require

BUILTIN_TESTS = 200


@dataclass(frozen=True)
class Plan:
    """What every row shares. Files are given as paths; without any, the built-in corpus is used."""

    out: str
    data: tuple[str, ...] = ()  # source and target of the training pairs
    valid: tuple[str, ...] = ()
    test: tuple[str, ...] = ()  # without it, rows are scored on the validation pairs: for tuning
    gold: str | None = None  # links drawn by hand, Pharaoh format
    gold_text: tuple[str, ...] = ()  # the sentences that they link
    overrides: tuple[str, ...] = ()  # section.key=value, over every recipe
    seeds: tuple[int, ...] = (1,)
    device: str | None = None
    shown: int | None = None  # the number of the test sentence whose alignment is drawn
    digests: dict[str, str] = field(default_factory=dict)  # what the files held when the comparison began

    def check(self) -> None:
        """Refuse, before anything is trained, what would fail after it."""
        if self.data and not self.scored:
            raise SaccadeError(
                "--test is missing: give the source and target files that the rows are scored on; while tuning, those "
                "of --valid are enough. Pairs held out of --data would not do: each row chooses its own, and a trained "
                "folder may have learned from them"
            )
        if self.test and not self.data:
            raise SaccadeError("--data is missing: give the source and target files that the rows are trained on")
        if "training.seed" in names_of(self.overrides):
            raise SaccadeError("training.seed is each row's own: 1, 2, … as many as --seeds says; leave it out")
        for name in (*self.data, *self.valid, *self.test, *self.gold_text, *([self.gold] if self.gold else [])):
            if name == STANDARD_INPUT or Path(name).is_fifo():
                raise SaccadeError(f"{name}: can be read only once, and every row reads it; write it to a file")
        if bool(self.gold) != bool(self.gold_text):
            raise SaccadeError("--gold (links) and --gold-text (their sentences, source and target) go together")
        for side in (self.scored, self.valid, self.gold_text):
            sources, targets = self._read(side) if side else ([], [])
            if len(sources) != len(targets):
                raise SaccadeError(f"{side[0]} has {len(sources):,} lines, {side[1]} {len(targets):,}: give as many")
        if self.gold:
            check_links(self.gold, read_pharaoh(self.gold), *self.gold_pairs())
        references = self.test_pairs()[1]
        tested = len(references)
        if not any(line.strip() for line in references):
            raise SaccadeError(f"{self.scored[1]} has no lines, or blank ones; name files with sentences to score on")
        if not 0 <= (self.shown or 0) < tested:
            raise SaccadeError(f"--sentence {self.shown} is not a line of the test set; count from 0")

    @property
    def learned(self) -> list[str]:
        """The files that rows learn from, or are chosen by."""
        return expanded([*self.data, *self.valid], monolingual=True)

    def with_digests(self) -> "Plan":
        files = [*self.learned, *self.test, *self.gold_text, *([self.gold] if self.gold else [])]
        return replace(self, digests={name: digest(name) for name in files if Path(name).is_file()})

    @property
    def scored(self) -> tuple[str, ...]:
        """The files that the rows are scored on; none: the built-in corpus."""
        return self.test or (self.valid if self.data else ())

    def test_pairs(self) -> tuple[list[str], list[str]]:
        """Sources and references that the rows are scored on."""
        if self.scored:
            return self._read(self.scored)
        from saccade.data import builtin

        data = self._corpus()
        made = islice(builtin.pairs(data.source, data.target, seed=data.seed, split="test"), BUILTIN_TESTS)
        sources, targets = zip(*made, strict=True)
        return list(sources), list(targets)

    @property
    def builtin(self) -> tuple[str, str]:
        """The languages of the built-in corpus that the rows are scored on where there are no files."""
        return self._corpus().source, self._corpus().target

    def _corpus(self) -> DataConfig:
        return Config.load(None, [item for item in self.overrides if item.startswith("data.")]).data

    @property
    def search(self) -> dict[str, Any]:
        """How all rows search, where settings say so: folders that are trained already too."""
        return dict(read_settings(None, self.overrides).get("search", {}))

    def gold_pairs(self) -> tuple[list[str], list[str]]:
        return self._read(self.gold_text)

    def _read(self, files: Sequence[str]) -> tuple[list[str], list[str]]:
        source, target = files
        return list(read_lines(source)), list(read_lines(target))

    def drawn(self) -> tuple[str, str]:
        """The test pair whose alignment is drawn for every row: as asked, or the first of a size that can be read."""
        sources, targets = self.test_pairs()
        if self.shown is not None:
            return sources[self.shown], targets[self.shown]
        readable = (i for i, line in enumerate(sources) if 7 <= len(line.split()) <= 12)
        chosen = next(readable, 0)
        return sources[chosen], targets[chosen]

    def save(self) -> Path:
        path = Path(self.out) / "plan.json"
        write_text(path, json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n")
        return path

    @staticmethod
    def load(path: str | Path) -> "Plan":
        read = json.loads(Path(path).read_text(encoding="utf-8"))
        settings: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in read.items()
        }
        return Plan(**settings)


@dataclass(frozen=True)
class Row:
    """One line of the table: a recipe to train, or a folder that is trained already."""

    name: str
    path: Path

    @property
    def trained(self) -> bool:
        return self.path.is_dir()

    def folder(self, plan: Plan, seed: int) -> Path:
        """Where the model of a seed lies."""
        return self.path if self.trained else Path(plan.out) / self.name / f"seed-{seed}"

    def results(self, plan: Plan, seed: int) -> Path:
        """Where what was measured of it is kept."""
        return Path(plan.out) / self.name / f"seed-{seed}.results"

    def seeds(self, plan: Plan) -> tuple[int, ...]:
        return plan.seeds[:1] if self.trained else plan.seeds


def rows_of(paths: Sequence[Path]) -> list[Row]:
    """A row for each recipe or folder, named by its last part."""
    rows: list[Row] = []
    for path in paths:
        if not path.exists():
            raise SaccadeError(f"{path}: there is no such recipe or folder")
        if path.is_dir() and not (path / CONFIG).exists():
            raise SaccadeError(f"{path}: a folder without {CONFIG}; name the recipes in it, such as {path}/*.yaml")
        if path.is_dir():
            require(path)
        name = Path(os.path.abspath(path)).name if path.is_dir() else path.stem  # of `.` and `..` too
        if name in {row.name for row in rows}:
            raise SaccadeError(f"{path}: there is another row named {name}; rename one of the two")
        rows.append(Row(name, path))
        if not path.is_dir():
            Config.load(path)
    if not rows:
        raise SaccadeError("nothing to compare: name recipes (YAML) or folders")
    return rows
