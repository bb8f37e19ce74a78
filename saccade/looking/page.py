"""A look as one HTML file: style, script and data inside it, nothing asked of any network.

The script and the style stand in `static` as plain files; the server hands them out as `look.js` and `look.css` to its
own page, which calls `SaccadeLook.mount(element, look)` with a look as JSON.
"""

import base64
import hashlib
import json
import zlib
from collections.abc import Sequence
from functools import cache
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

import numpy as np

from saccade.errors import SaccadeError
from saccade.looking.json import to_dict
from saccade.looking.look import CROSS, DECODER, ENCODER, Array, HeadWeights, Look, Side

# One scope for all, in this order: what is used stands before what uses it.
SCRIPTS = (
    "labels",
    "elements",
    "data",
    "chosen",
    "colour",
    "saying",
    "heat",
    "lines",
    "heads",
    "steps",
    "save",
    "layout",
    "mount",
)
STEPS, MISSING = 10_000, 65_535  # a weight is packed to four decimals; the last number stands for NaN
_SLOP = 1e-3  # sums of half-precision weights may pass 1 by this much


@cache
def look_script() -> str:
    """`look.js`: one global, `SaccadeLook`."""
    body = "\n".join(_static(f"{name}.js") for name in SCRIPTS)
    return f'(() => {{\n"use strict";\n{body}}})();\n'


@cache
def look_style() -> str:
    """`look.css`: every rule holds within `.saccade-look` alone."""
    return _static("look.css")


def look_page(look: Look) -> str:
    """The look as the text of one HTML file."""
    check_look(look)
    script = look_script() + _static("boot.js")
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(look_style())}'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    text = Template(_static("look.html")).substitute(
        policy=policy, title=escape(_title(look)), style=look_style(), data=_data(look), script=script
    )
    return text.encode("utf-8", "replace").decode("utf-8")  # half of a surrogate pair has no UTF-8


def check_look(look: Look) -> None:
    """Refuse weights that do not fit the pieces they are said to be of."""
    source = len(look.source.pieces)
    for head in look.encoder:
        _check_head(head, (ENCODER,), (source, source))
    _check_side("source", look.source)
    for number, path in enumerate(look.paths, start=1):
        written = len(path.target.pieces)
        _check_side(f"target of path {number}", path.target)
        if path.steps and len(path.steps) != written:
            raise SaccadeError(f"path {number} has {len(path.steps)} steps for {written} pieces; give one a piece")
        for head in path.heads:
            _check_head(head, (DECODER, CROSS), (written, written if head.stack == DECODER else source))


def _check_side(name: str, side: Side) -> None:
    if len(side.words) != len(side.pieces):
        raise SaccadeError(
            f"{name}: words has {len(side.words)} numbers for {len(side.pieces)} pieces; give one a piece"
        )
    present = set(side.words)
    if present != set(range(len(present))):
        raise SaccadeError(f"{name}: words={list(side.words)!r}: words are numbered from 0, and each needs a piece")


def _check_head(head: HeadWeights, stacks: Sequence[str], shape: tuple[int, int]) -> None:
    name = f"{head.stack} layer {head.layer}, head {head.head}"
    if head.stack not in stacks:
        raise SaccadeError(f"{name}: stack={head.stack!r} stands where only {' and '.join(stacks)} may")
    if head.weights.shape != shape:
        given = " × ".join(map(str, head.weights.shape))
        raise SaccadeError(f"{name}: weights are {given}, but there are {shape[0]} and {shape[1]} pieces")
    outside = np.argwhere((head.weights < -_SLOP) | (head.weights > 1 + _SLOP))
    if len(outside):
        row, column = outside[0]
        raise SaccadeError(
            f"{name}: weights[{row}, {column}]={head.weights[row, column]:g} is not between 0 and 1; "
            "show the weights after the softmax"
        )


def pack(weights: Array) -> dict[str, Any]:
    """Weights to four decimals: the low bytes, then the high ones, most of which are zero, deflated."""
    known = np.nan_to_num(np.clip(weights, 0, 1), nan=0.0)
    steps = np.where(np.isnan(weights), MISSING, np.rint(known * STEPS)).astype(np.uint16)
    planes = (steps & 255).astype(np.uint8).tobytes() + (steps >> 8).astype(np.uint8).tobytes()
    deflate = zlib.compressobj(level=6, wbits=-zlib.MAX_WBITS)
    packed = deflate.compress(planes) + deflate.flush()
    return {"shape": list(weights.shape), "packed": base64.b64encode(packed).decode("ascii")}


def _data(look: Look) -> str:
    """JSON that can stand in a script element: nothing in it closes one or opens a comment."""
    return json.dumps(to_dict(look, pack), separators=(",", ":"), allow_nan=False, default=str).replace("<", "\\u003c")


def _title(look: Look) -> str:
    text = " ".join(look.source.text.split())
    return f"{look.model}: {text}"[:120] if look.model else text[:120] or "Attention"


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _static(name: str) -> str:
    return (files("saccade.looking") / "static" / name).read_text(encoding="utf-8")
