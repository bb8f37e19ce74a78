"""A model is a folder that needs nothing else: config.yaml, model.safetensors, the tokenizer, README.md (its card)."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from saccade.config import Config
from saccade.data.tokenizers import Tokenizers
from saccade.devices import device_for
from saccade.engines.choose import choose_engine
from saccade.errors import SaccadeError
from saccade.files import read_json, write_text
from saccade.generation.ensemble import Mean
from saccade.models.build import build_model, with_shape
from saccade.models.packing import pack
from saccade.models.protocol import EncoderDecoder
from saccade.training.checkpoint import load_weights
from saccade.translator import Translator

CONFIG, WEIGHTS, CARD, RECORD, LOG = "config.yaml", "model.safetensors", "README.md", "record.json", "log.jsonl"


def load(
    folder: str | Path | Sequence[str | Path],
    device: str | None = "cpu",
    weights: str | Path | None = None,
    mean: Mean = "probabilities",
    engine: str = "auto",
) -> Translator:
    """The translator in `folder`. `weights`: another file of weights of the same model, such as a checkpoint's.

    Several folders with the same vocabulary are an ensemble, which writes by the `mean` of their probabilities.

    `engine`: `torch`; `ctranslate2`, for which `saccade export` must have been run; `auto`: CTranslate2 on a CPU if the
    folder holds an export of its weights.

    >>> import saccade
    >>> saccade.load("runs/demo").translate("January 5, 2021").text
    '5. Januar 2021'
    """
    if not isinstance(folder, str | Path):
        if not folder or weights is not None:
            raise SaccadeError("an ensemble is made of one folder or more, each with its own weights; name them")
        names = [str(one) for one in folder]
        if engine not in ("auto", "torch"):
            raise SaccadeError(f"--engine {engine} runs one model, not an ensemble; use --engine torch")
        return Translator.ensemble([load(one, device, engine="torch") for one in folder], mean, names)
    folder = Path(folder)
    require(folder)
    config = Config.load(folder / CONFIG)
    tokenizers = Tokenizers.load(folder)
    # A folder of an earlier version does not have the settings that came later: they imply what it did.
    config = config.model_copy(update={"model": with_shape(config.model, tokenizers.joint)})
    place = device_for(device, "--device")

    def model() -> EncoderDecoder:
        made = build_model(config, tokenizers.source.size, tokenizers.target.size)
        load_weights(made, Path(weights) if weights else folder / WEIGHTS)
        made = made.to(place).eval()
        pack(made)
        return made

    translator = Translator(config, tokenizers, model)
    translator.name = folder.resolve().name
    if weights is None:
        choose_engine(translator, folder, engine, place)
    if translator.engine is translator.own_engine:
        translator.model  # noqa: B018  what is wrong with the weights is said now
    return translator


def read_record(folder: str | Path) -> dict[str, Any]:
    """What training wrote down about the folder: data, time, scores."""
    path = Path(folder) / RECORD
    return read_json(path, "copy the folder again, or remove the file") if path.exists() else {}


def write_record(folder: Path, record: dict[str, Any]) -> None:
    """Keep the record, and say the same to people in the model card."""
    write_text(folder / RECORD, json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    write_text(folder / CARD, card(folder, record))


def card(folder: Path, record: dict[str, Any]) -> str:
    """The model card."""
    config = Config.load(folder / CONFIG)
    rows = "\n".join(
        f"- {score['metric']} **{score['value']:.2f}** `{score['signature']}`" for score in record.get("scores", [])
    )
    shape = ", ".join(f"{key} {value}" for key, value in config.model.model_dump().items() if value is not None)
    kind, use = "sequence-to-sequence model", f"saccade translate {folder.name} < input > output"
    if config.data.monolingual:
        kind, use = "language model", f"saccade score {folder.name} --target text.txt"
    return f"""# {languages(config)}

A {kind} trained with Saccade {record.get("saccade", "")}.

    {use}

| | |
|---|---|
| model | {shape} |
| parameters | {record.get("parameters", 0):,} |
| data | {record.get("data", {}).get("corpus", "")}: {record.get("data", {}).get("train_pairs", 0):,} pairs |
| training | {record.get("steps", 0):,} steps, {record.get("minutes", 0):.1f} minutes on {record.get("device", "")} |
| chosen | {record.get("chosen", "")} |

Scores on the validation set ({record.get("valid_pairs", 0):,} pairs), {record.get("search", "")}:

{rows}
{_forgetting(record)}"""


def _forgetting(record: dict[str, Any]) -> str:
    """What fine-tuning did to the old validation set, as a part of the card."""
    told = record.get("forgetting")
    if not told:
        return ""
    rows = "\n".join(f"- {line}" for line in forgetting_lines(told))
    return (
        f"\nFine-tuned from {told['base']}. Before → after, on {told['pairs']:,} pairs of {told['corpus']}:\n\n{rows}\n"
    )


def forgetting_lines(told: dict[str, Any]) -> list[str]:
    """What `saccade.training.forgetting` found, a line a measure."""
    loss = told["loss"]
    lines = [f"loss {loss['before']:.4f} → {loss['after']:.4f} (p = {loss['p_value']:.4f})"]
    return lines + [
        f"{score['metric']} {score['baseline']:.2f} → {score['system']:.2f} "
        f"(p = {score['p_value']:.4f}; {score['signature']})"
        for score in told["scores"]
    ]


def languages(config: Config) -> str:
    """From what to what, or of what."""
    source, target = config.data.source, config.data.target
    return target if config.data.monolingual else f"{source} → {target}"


def require(folder: Path) -> None:
    """Refuse, with the remedy, what is not a folder that translates."""
    if not folder.exists():
        raise SaccadeError(
            f"{folder}: there is no such folder; train one with: saccade train SOURCE TARGET --out {folder}"
        )
    if not folder.is_dir():
        raise SaccadeError(f"{folder}: is a file, not a folder that saccade train made; name the folder")
    for name in (CONFIG, WEIGHTS):
        if not (folder / name).exists():
            raise SaccadeError(
                f"{folder}: has no {name}, so it is not a finished Saccade folder; "
                "if its training was stopped before the first validation, run the same train command again"
            )
