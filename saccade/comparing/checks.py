"""What is refused before a comparison begins, so that it does not fail row by row, nor is told of other pairs."""

from collections.abc import Sequence

import torch

from saccade.api import settings_from
from saccade.comparing.plan import Plan, Row
from saccade.config import Config, read_settings
from saccade.data.prepare import check_corpora
from saccade.devices import device_for
from saccade.errors import SaccadeError
from saccade.folder import CONFIG
from saccade.languages import languages_of
from saccade.planning import choose_sides, choose_vocabulary
from saccade.training.checks import check_together

UNTOLD = languages_of([])  # where names of files do not tell


def check_rows(rows: Sequence[Row], plan: Plan) -> None:
    """Refuse what no recipe can have, and rows of other pairs; a recipe that only cannot be trained fails alone."""
    refused, recipes = [], [row for row in rows if not row.trained]
    if not recipes and (idle := sorted(set(read_settings(None, plan.overrides)) - {"search"})):
        raise SaccadeError(f"settings of {idle[0]} are for recipes, and every row is trained already; leave them out")
    _check_device(plan.device, "--device")
    for row in rows:
        if row.trained:
            config = Config.load(row.path / CONFIG).with_changes({"search": plan.search})
        else:
            try:
                config = _trainable(row, plan)
            except SaccadeError as error:
                refused.append(error)
                continue
        _check_pairs(row, config, plan)
    if refused and len(refused) == len(recipes):
        raise refused[0]


def _trainable(row: Row, plan: Plan) -> Config:
    """The settings that a recipe is trained with, looked at as training does before it begins."""
    config = settings_from([*plan.data, *plan.overrides], row.path, plan.valid)
    config = choose_vocabulary(choose_sides(config, config.model))
    check_together(config)
    if plan.device is None:
        _check_device(config.training.device, "training.device")
    if plan.data or not (config.data.train or config.data.mixture):
        check_corpora(config.data)
    return config


def _check_device(name: str | None, setting: str) -> None:
    """A GPU is not opened here: what this process held of it, the rows could not have."""
    if name is not None and not (name.startswith("cuda") and torch.cuda.is_available()):
        device_for(name, setting)


def _check_pairs(row: Row, config: Config, plan: Plan) -> None:
    """Refuse a row that learned, or would learn, something else than what all are scored on."""
    data = config.data
    if data.monolingual:
        raise SaccadeError(
            f"{row.path}: data.monolingual=true learns a text, and rows are scored on how they translate; leave it out"
        )
    if not plan.data and not row.trained and (data.train or data.mixture):
        raise SaccadeError(
            f"{row.path}: data.{'train' if data.train else 'mixture'} would be of this row alone, or scored on other "
            "pairs; give the files of all rows with --data, and those that they are scored on with --test"
        )
    own, scored = (data.source, data.target), languages_of(plan.scored) if plan.scored else plan.builtin
    known = UNTOLD not in (own, scored) and (row.trained or not plan.data)
    if known and [name[:2] for name in own] != [name[:2] for name in scored]:
        remedy = f"give data.source={own[0]} data.target={own[1]} for all" if not plan.scored else "name other files"
        raise SaccadeError(
            f"{row.path}: translates {' to '.join(own)}, and the rows are scored on {' to '.join(scored)}; {remedy}"
        )
