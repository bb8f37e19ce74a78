"""What was measured of a row, and whether it still holds."""

import hashlib
import json
from dataclasses import asdict
from typing import Any

from saccade.comparing.plan import Plan, Row


def fingerprint(row: Row, plan: Plan) -> str:
    """Changes when what a result depends on does."""
    recipe = "" if row.trained else row.path.read_text(encoding="utf-8")
    depends = {name: value for name, value in asdict(plan).items() if name not in ("out", "seeds")}
    return hashlib.sha256(json.dumps([recipe, depends]).encode()).hexdigest()[:16]


def read_result(what: str, row: Row, seed: int, plan: Plan) -> dict[str, Any] | None:
    """What was measured, if it was measured as the plan stands now."""
    place = row.results(plan, seed)
    result, mark = place / f"{what}.json", place / f"{what}.mark"
    if not result.exists() or not mark.exists() or mark.read_text(encoding="utf-8") != fingerprint(row, plan):
        return None
    return dict(json.loads(result.read_text(encoding="utf-8")))
