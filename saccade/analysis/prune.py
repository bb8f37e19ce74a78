"""A folder without some of its heads: their part of the weights is gone, so it is smaller and quicker."""

import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from saccade.config import Config
from saccade.errors import SaccadeError
from saccade.files import written_atomically
from saccade.folder import CARD, CONFIG, LOG, RECORD, WEIGHTS, load
from saccade.models.build import count_parameters
from saccade.models.heads import HeadName, cut
from saccade.training import checkpoint
from saccade.translator import Translator

# What was learned about the whole model does not hold for the pruned one.
_LEFT_BEHIND = (WEIGHTS, CONFIG, RECORD, CARD, LOG, "alignment.json", "aligner.json", "aligner.safetensors")


class Pruned(NamedTuple):
    """What it bought."""

    heads: int
    parameters: tuple[int, int]  # before, after
    seconds: tuple[float, float]  # to translate the same sentences


def prune(folder: Path, gone: Sequence[HeadName], out: Path) -> Translator:
    """Make `out` the folder without the heads `gone`, and load it."""
    if out.exists():
        raise SaccadeError(f"{out}: is there already; choose another --out")
    translator = load(folder, "cpu", engine="torch")
    weights, left = cut(translator.model, gone)
    config = Config.load(folder / CONFIG).with_changes({"model": {"heads_left": left}})
    with written_atomically(out) as part:
        part.mkdir()
        for path in folder.iterdir():
            if path.is_file() and path.name not in _LEFT_BEHIND:
                shutil.copy2(path, part / path.name)
        config.save(part / CONFIG)
        checkpoint.save_weights(weights, part / WEIGHTS)
    return load(out, "cpu", engine="torch")


def bought(before: Translator, after: Translator, heads: int, sources: Sequence[str], beam: int) -> Pruned:
    """Measured in turns, the best of three each; outputs of any length are cut at the same number of pieces."""
    seconds: list[list[float]] = [[], []]
    for _ in range(3):
        for turn, translator in enumerate((before, after)):
            started = time.perf_counter()
            for _ in translator.stream(sources, beam=beam, guard=False):
                pass
            seconds[turn].append(time.perf_counter() - started)
    sizes = count_parameters(before.model), count_parameters(after.model)
    return Pruned(heads, sizes, (min(seconds[0]), min(seconds[1])))
