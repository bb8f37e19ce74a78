"""export.json: what an export was made of, and how it was verified."""

import hashlib
import json
from pathlib import Path
from typing import Any

from saccade.errors import SaccadeError
from saccade.files import read_json

RECORD = "export.json"


def fingerprint(weights: Path) -> str:
    """What tells the weights of one training from those of another."""
    digest = hashlib.sha256()
    with open(weights, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def write_export(place: Path, record: dict[str, Any]) -> None:
    """Keep the record in a folder that is being written."""
    (place / RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def read_export(export: Path, folder: Path, remedy: str) -> dict[str, Any]:
    """The record of an export that was made of the weights that `folder` has now."""
    record = read_json(export / RECORD, remedy)
    if record.get("weights") != fingerprint(folder / "model.safetensors"):
        raise SaccadeError(f"{export}: was made of other weights than {folder} has now; {remedy}")
    return record
