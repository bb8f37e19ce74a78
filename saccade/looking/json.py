"""A look as JSON, and back.

    {"version": 1, "model": "runs/demo", "facts": {…},
     "source": SIDE, "encoder": [HEAD, …],
     "paths": [{"score": -1.25, "target": SIDE, "steps": [STEP, …], "heads": [HEAD, …]}, …]}

    SIDE  {"text": "…", "pieces": ["▁Jan", "uary", …, "<eos>"], "words": [0, 0, …], "word_texts": ["January", …]}
    HEAD  {"stack": "encoder" | "decoder" | "cross", "layer": 1, "head": 1, "weights": [[0.25, …], …]}
    STEP  {"probability": 0.98, "alternatives": [["▁Januar", 0.98], …]}

The fields are those of `saccade.looking.look`. Weights are rounded to 5 decimals, probabilities and scores to 6; what
is no number (NaN, infinite) is null. What is read back and written again is the same text.
"""

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from saccade.errors import SaccadeError
from saccade.looking.look import STACKS, Array, HeadWeights, Look, Path, Side, Step

VERSION = 1
WEIGHT_DECIMALS, DECIMALS = 5, 6


def to_dict(look: Look, written: Callable[[Array], Any] | None = None) -> dict[str, Any]:
    """The look as lists, strings and numbers; `written`: weights in another form than nested lists."""
    write = written or _rounded
    return {
        "version": VERSION,
        "model": look.model,
        "facts": look.facts,
        "source": _side(look.source),
        "encoder": [_head(head, write) for head in look.encoder],
        "paths": [
            {
                "score": _number(path.score),
                "target": _side(path.target),
                "steps": [
                    {
                        "probability": _number(step.probability),
                        "alternatives": [[piece, _number(p)] for piece, p in step.alternatives],
                    }
                    for step in path.steps
                ],
                "heads": [_head(head, write) for head in path.heads],
            }
            for path in look.paths
        ],
    }


def to_json(look: Look) -> str:
    """The look as one line of JSON."""
    text = json.dumps(to_dict(look), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "replace").decode("utf-8")  # half of a surrogate pair has no UTF-8


def from_json(text: str, where: str = "the look") -> Look:
    """What `to_json` wrote; `where`: what is named if it is something else."""
    try:
        return from_dict(json.loads(text), where)
    except json.JSONDecodeError as error:
        raise SaccadeError(f"{where}: not JSON ({error}); write it again with saccade inspect --json") from None


def from_dict(given: Any, where: str = "the look") -> Look:
    """What `to_dict` gave."""
    version = given.get("version") if isinstance(given, dict) else None
    if version != VERSION:
        raise SaccadeError(
            f"{where}: version={version!r} of a look, and this Saccade reads {VERSION}; write it again with saccade "
            "inspect --json"
        )
    try:
        return Look(
            model=given["model"],
            source=_read_side(given["source"]),
            paths=tuple(
                Path(
                    target=_read_side(path["target"]),
                    score=_read_number(path["score"]),
                    steps=tuple(
                        Step(
                            _read_number(step["probability"]),
                            tuple((str(piece), _read_number(p)) for piece, p in step["alternatives"]),
                        )
                        for step in path["steps"]
                    ),
                    heads=tuple(_read_head(head) for head in path["heads"]),
                )
                for path in given["paths"]
            ),
            encoder=tuple(_read_head(head) for head in given["encoder"]),
            facts=given["facts"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise SaccadeError(
            f"{where}: not a look ({type(error).__name__}: {error}); write it again with saccade inspect --json"
        ) from None


def _side(side: Side) -> dict[str, Any]:
    return {
        "text": side.text,
        "pieces": list(side.pieces),
        "words": list(side.words),
        "word_texts": list(side.word_texts),
    }


def _read_side(given: Any) -> Side:
    return Side(given["text"], tuple(given["pieces"]), tuple(given["words"]), tuple(given["word_texts"]))


def _head(head: HeadWeights, write: Callable[[Array], Any]) -> dict[str, Any]:
    return {"stack": head.stack, "layer": head.layer, "head": head.head, "weights": write(head.weights)}


def _read_head(given: Any) -> HeadWeights:
    if given["stack"] not in STACKS:
        raise ValueError(f"stack={given['stack']!r} is none of {', '.join(STACKS)}")
    rows = given["weights"]
    weights = np.array(rows, dtype=np.float32).reshape(len(rows), -1 if rows and rows[0] else 0)
    return HeadWeights(given["stack"], given["layer"], given["head"], weights)


def _rounded(weights: Array) -> list[list[float | None]]:
    # In double precision: 0.1 of single precision would be written with all its digits.
    rows: list[list[float | None]] = np.round(weights.astype(np.float64), WEIGHT_DECIMALS).tolist()
    if not np.isfinite(weights).all():
        rows = [[None if value is None or not math.isfinite(value) else value for value in row] for row in rows]
    return rows


def _number(value: float) -> float | None:
    return round(value, DECIMALS) if math.isfinite(value) else None


def _read_number(value: Any) -> float:
    return math.nan if value is None else float(value)
