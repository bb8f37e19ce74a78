"""What was measured of a row, and whether it still holds."""

import hashlib
import json
from dataclasses import asdict
from typing import Any

from saccade.comparing.plan import Plan, Row
from saccade.config import read_settings
from saccade.files import digest, read_json, write_text
from saccade.folder import CONFIG, WEIGHTS


def fingerprint(row: Row, plan: Plan) -> str:
    """Changes when what a result depends on does."""
    # Of a folder that is trained already: the model in it, for another may lie there later, or have the same name.
    parts = [row.path / part for part in (CONFIG, WEIGHTS)] if row.trained else []
    recipe = {part.name: digest(part) for part in parts if part.exists()} if row.trained else read_settings(row.path)
    depends = {name: value for name, value in asdict(plan).items() if name not in ("out", "seeds", "digests")}
    return hashlib.sha256(json.dumps([recipe, depends]).encode()).hexdigest()[:16]


def read_result(what: str, row: Row, seed: int, plan: Plan) -> dict[str, Any] | None:
    """What was measured, if it was measured as the plan and its files stand now."""
    found = _read_marked(what, row, seed, plan)
    return None if found is None or _changed(found.pop("files", {}), plan) else found


def changed_files(row: Row, seed: int, plan: Plan) -> list[str]:
    """The files that hold something else than when the row was measured."""
    found = _read_marked("quality", row, seed, plan)
    return [] if found is None else _changed(found.get("files", {}), plan)


def _changed(before: dict[str, str], plan: Plan) -> list[str]:
    """Nothing is known of results that were kept without digests."""
    now = plan.digests
    return sorted(name for name in {*before, *now} if before.get(name) != now.get(name)) if before and now else []


def _read_marked(what: str, row: Row, seed: int, plan: Plan) -> dict[str, Any] | None:
    path = row.results(plan, seed) / f"{what}.json"
    if not path.exists():
        return None
    found = read_json(path, "remove the file: the row is then measured again")
    return found if found.pop("mark", None) == fingerprint(row, plan) else None


def write_result(what: str, row: Row, seed: int, plan: Plan, measured: dict[str, Any]) -> None:
    """Keep what was measured, marked with what it depends on."""
    text = json.dumps(measured | {"mark": fingerprint(row, plan), "files": plan.digests}, ensure_ascii=False)
    write_text(row.results(plan, seed) / f"{what}.json", text + "\n")
