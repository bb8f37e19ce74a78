"""Which engine a folder is translated with."""

from pathlib import Path

import torch

from saccade.engines import ENGINES
from saccade.engines.ctranslate2 import CTranslate2Engine
from saccade.errors import SaccadeError
from saccade.export.record import read_export
from saccade.translator import Translator

EXPORT = "ctranslate2"  # the folder in a folder


def choose_engine(translator: Translator, folder: Path, name: str, device: torch.device) -> None:
    """Give the translator its engine. `auto`: CTranslate2 on a CPU, if the folder holds an export of its weights."""
    if name not in ENGINES:
        raise SaccadeError(f"--engine {name} is not known; use {', '.join(ENGINES)}")
    if name == "torch" or (name == "auto" and (device.type != "cpu" or not (folder / EXPORT).exists())):
        return
    try:
        translator.engine = _ctranslate2(translator, folder, device)
    except SaccadeError as error:
        if name != "auto":
            raise
        translator.engine_refused = str(error)
        return
    translator.engine_is_asked_for = name != "auto"


def _ctranslate2(translator: Translator, folder: Path, device: torch.device) -> CTranslate2Engine:
    export = folder / EXPORT
    remedy = f"make it with: saccade export {folder} --to ctranslate2"
    if not export.exists():
        raise SaccadeError(f"{folder}: holds no export for CTranslate2; {remedy}")
    if device.type not in ("cpu", "cuda"):
        raise SaccadeError(f"--device {device}: CTranslate2 runs on cpu and cuda; use --engine torch")
    read_export(export, folder, remedy)
    return CTranslate2Engine(
        export,
        translator.tokenizers,
        translator.never_written,
        translator.own_engine,
        device,
    )
