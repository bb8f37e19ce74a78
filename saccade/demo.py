"""The demonstration: a translator trained from nothing in a minute or so, and what it does."""

import os
import shutil
import sys
from itertools import islice
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from saccade.api import train
from saccade.data import builtin
from saccade.display import Display
from saccade.evaluation.metrics import score_corpus
from saccade.looking.terminal import crosses
from saccade.translator import Translation, Translator

MODEL = {"size": "tiny", "dropout": 0.1}
TRAINING: dict[str, Any] = {
    "device": "cpu",
    "threads": 1,  # so small a model gains a tenth by a second one, and loses three quarters beside other work
    "batch_tokens": 1024,
    "max_steps": 700,
    "learning_rate": 4e-3,
    "warmup_steps": 100,
    "schedule": "linear",
    "validate_every": 140,
    "validate_bleu_pairs": 50,
    "average": 1,
}
SHOWN, SCORED = 8, 300


def run_demo(out: Path, minutes: float | None = None) -> None:
    """Train, translate held-out sentences, score them, and draw an alignment in which words change places."""
    console = Console(highlight=False)
    display = Display(console=console)
    display.say("Training a Transformer on dates, times, money and numbers, English to German, made on the spot:\n")
    translator = train_demo(out, minutes)
    pairs = list(islice(builtin.pairs("en", "de", split="test"), SCORED))
    with display.task("translating what it has never seen", SCORED) as progress:
        translations = list(translator.stream([source for source, _ in pairs], progress))
    table = Table(title="\nwhat it has never seen", title_justify="left")
    for column in ("English", "Saccade", "reference"):
        table.add_column(column, overflow="fold")
    for translation, (source, reference) in islice(zip(translations, pairs, strict=True), SHOWN):
        mark = "" if translation.text == reference else " ✗"
        table.add_row(source, translation.text + mark, reference)
    console.print(table)
    for score in score_corpus([t.text for t in translations], [r for _, r in pairs], metrics=("bleu", "chrf")):
        display.say(str(score))
    display.say("\nWhere it looked (a row for each German word it wrote):\n")
    right = [t for t, (_, reference) in zip(translations, pairs, strict=True) if t.text == reference]
    console.print(_crossed(right or translations).draw())
    saccade = "saccade" if shutil.which("saccade") else _as_called()
    display.say(
        f"""
Try next:
  echo "Friday, March 3, 2017" | {saccade} translate {out}
  {saccade} train your.de your.en --out runs/de-en      # your own pairs; nothing else needs setting
  {saccade} info {out}"""
    )


def _as_called() -> str:
    """The command line by a name that can be typed where `saccade` is not on the path."""
    called = Path(sys.argv[0])
    return f"{Path(sys.executable).name} -m saccade" if called.name == "__main__.py" else os.path.relpath(called)


def train_demo(out: Path, minutes: float | None = None, restart: bool = True) -> Translator:
    """The demo's translator alone.

    Without `minutes` it takes all its steps, however busy the machine is: stopped halfway it knows next to nothing.
    `restart=False` goes on with one that was stopped, and refuses a folder of another kind.
    """
    training = TRAINING | {"max_minutes": minutes}
    return train("data.source=en", "data.target=de", out=out, restart=restart, model=MODEL, training=training)


def _crossed(translations: list[Translation]) -> Translation:
    """A translation of some words in which they change places, and the one where the model is surest of it."""
    drawable = [(t, t.word_attention) for t in translations[:100] if t.word_attention is not None]
    return max(drawable, key=lambda pair: (crosses(pair[1]) > 0, len(pair[1]) > 3, pair[1].max(axis=1).mean()))[0]
