"""An explanation on the terminal, and as JSON."""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from saccade.display import Display
from saccade.errors import SaccadeError
from saccade.explain import TOPICS, explain
from saccade.explain.records import Explanation, Table
from saccade.files import write_text, writing
from saccade.looking.charts import draw_plot
from saccade.looking.figures import check_figure, save_figure

WIDEST = 100  # columns of a paragraph: longer lines are hard to read


def run_explain(topic: str | None, *, out: Path | None, to_json: Path | None, seed: int, steps: int | None) -> None:
    """The command: run the experiment, then print it, draw it and write it down."""
    stdout: Any = sys.stdout
    stdout.reconfigure(errors="replace")  # where the locale knows no √, a question mark is better than an end
    console = Console(highlight=False)
    if topic is None:
        if out is not None or to_json is not None or steps is not None:
            raise SaccadeError(f"--out, --json and --steps are for a topic; name one: {', '.join(TOPICS)}")
        console.print(_topics())
        return
    if out is not None:
        check_figure(out)
    explanation = explain(topic, seed=seed, steps=steps, display=Display())
    numbers = as_json(explanation, topic, seed, steps or TOPICS[topic].steps)
    if to_json == Path("-"):
        sys.stdout.write(numbers)
    else:
        show(explanation, console)
        if to_json is not None:
            with writing(to_json):
                write_text(to_json, numbers)
    if out is not None:
        save_figure(explanation.plot, out)


def show(explanation: Explanation, console: Console) -> None:
    """Print sentences, tables and the plot."""
    width = min(console.width, WIDEST)
    parts: Iterable[RenderableType] = (
        Text(explanation.title, style="bold"),
        *(Text(paragraph) for paragraph in explanation.paragraphs),
        *(_table(table) for table in explanation.tables),
    )
    for part in parts:
        console.print(Padding(part, (0, 0, 1, 0), expand=False), width=width)
    console.print(draw_plot(explanation.plot))


def as_json(explanation: Explanation, topic: str, seed: int, steps: int | None) -> str:
    """Every number that was measured, and what gives them again."""
    answer: dict[str, Any] = {"topic": topic, "title": explanation.title, "seed": seed, "steps": steps}
    return json.dumps(answer | {"numbers": dict(explanation.numbers)}, indent=1, ensure_ascii=False) + "\n"


def _table(table: Table) -> RichTable:
    drawn = RichTable(title=table.title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for number, column in enumerate(table.columns):
        drawn.add_column(column, justify="right" if number else "left", overflow="fold")
    for row in table.rows:
        drawn.add_row(*(Text(cell) for cell in row))
    return drawn


def _topics() -> RichTable:
    table = RichTable(box=None, show_header=False, pad_edge=False, title="saccade explain TOPIC", title_justify="left")
    for name, topic in TOPICS.items():
        table.add_row(Text(name, style="bold"), topic.about)
    return table
