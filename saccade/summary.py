"""What is in a folder, and folders made from checkpoints."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from saccade.config import Config
from saccade.data.tokenizers import Tokenizers
from saccade.display import spell_time
from saccade.errors import SaccadeError
from saccade.files import writing, written_atomically
from saccade.folder import CARD, CONFIG, LOG, RECORD, WEIGHTS, forgetting_lines, languages, read_record, require
from saccade.models.build import measures
from saccade.training import checkpoint


def summarise(folder: Path) -> dict[str, Any]:
    """Facts about a folder, for people and for JSON."""
    require(folder)
    config, record = Config.load(folder / CONFIG), read_record(folder)
    tokenizers = Tokenizers.load(folder)
    data = record.get("data", {})
    sizes = [tokenizers.source.size] if tokenizers.joint else [tokenizers.source.size, tokenizers.target.size]
    facts: dict[str, Any] = {
        "folder": str(folder),
        "languages": languages(config),
        "model": f"{config.model.family} {config.model.size}: {measures(config.model)}",
        "parameters": f"{checkpoint.parameters_in(folder / WEIGHTS):,}",
        "vocabulary": " + ".join(f"{size:,}" for size in sizes)
        + f" {config.tokenizer.kind} pieces, {'joint' if tokenizers.joint else 'separate'}",
    }
    if data:
        facts["data"] = (
            f"{data['corpus']}: {data['train_pairs']:,} pairs trained on, {data['read'] - data['kept']:,} dropped"
        )
    if record:
        facts["training"] = (
            f"{record['steps']:,} steps, {record['target_tokens']:,} target tokens, "
            f"{spell_time(60 * record['minutes'])} on {record['device']}; {record['ended']}"
        )
        facts["weights"] = record["chosen"]
        facts["scores"] = [
            f"{score['metric']} {score['value']:.2f} ({score['signature']})" for score in record["scores"]
        ]
    if told := record.get("forgetting"):
        facts["old test"] = [f"{told['pairs']:,} pairs of {told['corpus']}, before → after", *forgetting_lines(told)]
    steps = [int(place.name.removeprefix("step-")) for place in checkpoint.checkpoints(folder / "resume")]
    if steps:
        facts["checkpoints"] = f"steps {', '.join(f'{step:,}' for step in steps)} in resume/"
    files = [path for path in folder.rglob("*") if path.is_file()]
    resume = sum(path.stat().st_size for path in files if "resume" in path.relative_to(folder).parts)
    total = sum(path.stat().st_size for path in files)
    facts["size"] = f"{_megabytes(total - resume)}" + (f", and {_megabytes(resume)} in resume/" if resume else "")
    return facts


def average_into(inputs: Sequence[Path], out: Path, last: int) -> list[str]:
    """Make `out` a folder with the mean of several files of weights; returns what was done, in words."""
    base, files = _weights_of(inputs, last)
    if out.exists():
        raise SaccadeError(f"{out}: is there already; choose another --out")
    weights = checkpoint.average(files)
    with writing(out, "choose another --out"), written_atomically(out) as part:
        part.mkdir()
        for path in base.iterdir():
            if path.is_file() and path.name not in (WEIGHTS, RECORD, CARD, LOG):
                shutil.copy2(path, part / path.name)
        checkpoint.save_weights(weights, part / WEIGHTS)
    return [f"{out}: the mean of {len(files)} files of weights", *(f"  {file}" for file in files)]


def _weights_of(inputs: Sequence[Path], last: int) -> tuple[Path, list[Path]]:
    """The folder to copy the rest from, and the files of weights."""
    if len(inputs) == 1 and inputs[0].is_dir():
        base = inputs[0]
        require(base)
        files = [place / WEIGHTS for place in checkpoint.to_average(base / "resume")][-last:]
        if not files:
            raise SaccadeError(f"{base}: has no checkpoints in resume/ to average; name files of weights instead")
        return base, files
    files = [path / WEIGHTS if path.is_dir() else path for path in inputs]
    for path, file in zip(inputs, files, strict=True):
        if not file.exists():
            raise SaccadeError(
                f"{path}: no weights here; name a folder, a checkpoint in resume/, or its model.safetensors"
            )
    base = next((place for place in files[0].resolve().parents if (place / CONFIG).exists()), files[0].parent)
    require(base)
    return base, files


def _megabytes(size: int) -> str:
    return f"{size / 2**20:,.1f} MB"
