"""The table: one line a row, with what each step bought over the row above."""

import html
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np

from saccade.comparing.plan import Plan, Row
from saccade.comparing.results import read_result
from saccade.display import spell_time
from saccade.evaluation.metrics import compare_systems, score_corpus

Failures = Mapping[tuple[str, int], str]
UNMEASURED = "not measured yet"
JUDGED = {"bleu": "BLEU", "accuracy": "accuracy"}  # what a row is judged by, and compared with the one above
BAR = r"\|"  # in a cell of Markdown, where | would end it


@dataclass
class Line:
    """A row as it is printed; None where there is nothing to say."""

    name: str
    model: str = ""
    parameters: int | None = None
    seeds: list[int] = field(default_factory=list)
    bleu: list[float] = field(default_factory=list)  # one a seed
    chrf: list[float] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)  # of labels, in the place of both
    signatures: list[str] = field(default_factory=list)
    p_value: float | None = None  # against the row above: the largest of the seeds'
    error_rate: list[float] = field(default_factory=list)  # AER, one a seed
    train_tokens_per_second: float | None = None
    decode_tokens_per_second: float | None = None
    seconds_to_quality: float | None = None
    target_tokens: int | None = None
    device: str = ""
    lengths: list[dict[str, float]] = field(default_factory=list)  # BLEU, or accuracy, by length of the source
    curve: list[dict[str, float]] = field(default_factory=list)  # of the first seed
    cost: list[dict[str, float]] = field(default_factory=list)
    drawn: dict[str, Any] | None = None
    quality: float | None = None  # the validation BLEU whose time is given
    failed: str | None = None

    @property
    def judged(self) -> str:
        """The metric that says how good it is."""
        return "accuracy" if self.accuracy else "bleu"

    @property
    def lacking(self) -> str:
        """Why there is not all of it, in words."""
        return UNMEASURED if self.failed == UNMEASURED else f"failed: {self.failed}"


def lines_of(
    rows: Sequence[Row],
    plan: Plan,
    failures: Failures,
    quality: float | None,
    *,
    paired: bool = True,
    progress: Callable[[int], None] = lambda done: None,
) -> list[Line]:
    """What was measured, row by row; `quality` is the validation BLEU whose time is given (None: 90% of the best).

    `paired`: with the significance against the row above, which takes a second or two a row and seed.
    """
    sources, references = plan.test_pairs()
    edges = length_edges(sources)
    lines: list[Line] = []
    above: dict[str, dict[int, list[str]]] = {}  # the row above that was measured, by the metric it is judged by
    for row in rows:
        line = Line(row.name)
        texts: dict[int, list[str]] = {}
        tokenize = "13a"
        for seed in row.seeds(plan):
            found = read_result("quality", row, seed, plan)
            if found is None:
                why = failures.get((row.name, seed), UNMEASURED)
                line.failed = why if why == UNMEASURED or len(row.seeds(plan)) == 1 else f"seed {seed}: {why}"
                continue
            _add_quality(line, found, seed)
            tokenize = found["tokenize"]
            path = row.results(plan, seed) / "translations.txt"
            texts[seed] = path.read_text(encoding="utf-8").split("\n")[:-1]
        if texts:
            line.lengths = by_length(texts, sources, references, edges, tokenize, line.judged)
            if paired:
                line.p_value = _significance(above.get(line.judged, {}), texts, references, tokenize, line.judged)
            above = {line.judged: texts}
        if speed := read_result("speed", row, plan.seeds[0], plan):
            line.train_tokens_per_second = speed["train_tokens_per_second"]
            line.decode_tokens_per_second = speed["decode_tokens_per_second"]
            line.cost, line.device = speed["cost"], speed["device"]
        elif line.failed is None:
            line.failed = failures.get((row.name, plan.seeds[0]))
        lines.append(line)
        progress(len(lines))
    _add_time_to_quality(lines, quality)
    return lines


def _add_quality(line: Line, found: dict[str, Any], seed: int) -> None:
    by_metric = {score["metric"].lower(): score for score in found["scores"]}
    if not line.seeds:
        line.model, line.parameters = found["model"], found["parameters"]
        line.target_tokens = found["target_tokens"]
        line.drawn, line.curve = found["drawn"], found["curve"]
        line.signatures = [score["signature"] for score in found["scores"]]
    line.seeds.append(seed)
    for name, values in (("bleu", line.bleu), ("chrf", line.chrf), ("accuracy", line.accuracy)):
        values += [score["value"] for metric, score in by_metric.items() if metric.startswith(name)]
    if found["alignment"] is not None:
        line.error_rate.append(found["alignment"]["error_rate"])


def _significance(
    above: Mapping[int, list[str]], texts: Mapping[int, list[str]], references: list[str], tokenize: str, metric: str
) -> float | None:
    """The paired bootstrap's p, seed against the same seed; the largest: all seeds must agree."""
    both = sorted(set(above) & set(texts))
    if not both or len(references) < 2:  # a bootstrap of one sentence says nothing
        return None
    found = [
        compare_systems(above[seed], texts[seed], references, metrics=(metric,), samples=500, tokenize=tokenize)
        for seed in both
    ]
    return max(comparison[0].p_value for comparison in found)


def length_edges(sources: Sequence[str], buckets: int = 6) -> list[int]:
    """Lengths in words that cut the sources into buckets of about equal size."""
    lengths = [len(line.split()) for line in sources]
    cuts = np.quantile(lengths, np.linspace(0, 1, buckets + 1)[1:-1])
    return sorted({int(cut) for cut in cuts})


def by_length(
    texts: Mapping[int, list[str]],
    sources: list[str],
    references: list[str],
    edges: Sequence[int],
    tokenize: str,
    metric: str = "bleu",
) -> list[dict[str, float]]:
    """The score, the mean over seeds, of the sentences in each bucket of source lengths."""
    lengths = np.array([len(line.split()) for line in sources])
    bucket = np.searchsorted(edges, lengths)
    found = []
    for number in range(len(edges) + 1):
        members = np.flatnonzero(bucket == number)
        if not len(members):
            continue
        wanted = [references[i] for i in members]
        scores = [
            score_corpus([lines[i] for i in members], wanted, metrics=(metric,), tokenize=tokenize)[0].value
            for lines in texts.values()
        ]
        found.append({"words": float(lengths[members].mean()), "sentences": len(members), metric: mean(scores)})
    return found


def _add_time_to_quality(lines: Sequence[Line], quality: float | None) -> None:
    """Target tokens until the validation BLEU is first reached, at the speed that the row has when it runs alone."""
    lines = [line for line in lines if line.judged == "bleu"]
    known = [point["bleu"] for line in lines for point in line.curve if point["bleu"] is not None]
    if quality is None and not known:
        return
    bar = quality if quality is not None else 0.9 * max(known)
    for line in lines:
        line.quality = bar
        reached = [point["tokens"] for point in line.curve if point["bleu"] is not None and point["bleu"] >= bar]
        if reached and line.train_tokens_per_second:
            line.seconds_to_quality = reached[0] / line.train_tokens_per_second


def spread(values: Sequence[float], digits: int = 2) -> str:
    """A mean, with the standard deviation over seeds where there are several."""
    if not values:
        return "–"
    shown = f"{mean(values):.{digits}f}"
    return f"{shown} ± {stdev(values):.{digits}f}" if len(values) > 1 else shown


HEADS = (
    "row",
    "parameters",
    "BLEU",
    "chrF",
    "accuracy %",
    "p (row above)",
    "AER %",
    "training tokens/s",
    "time to quality",
    "decoding tokens/s",
)


def table_of(lines: Sequence[Line]) -> list[list[str]]:
    """The heads and the lines as text, with the columns of scores that some line has."""
    labels, sentences = any(line.accuracy for line in lines), any(line.bleu for line in lines)
    idle = {"accuracy %"} if not labels else {"BLEU", "chrF"} if not sentences else set()
    shown = [number for number, head in enumerate(HEADS) if head not in idle]
    cells = [list(HEADS), *map(_cells_of, lines)]
    for line, row in zip(lines, cells[1:], strict=True):
        if line.failed and not line.bleu and not line.accuracy:
            row[shown[2]] = line.lacking
    return [[row[number] for number in shown] for row in cells]


def _cells_of(line: Line) -> list[str]:
    return [
        line.name,
        "–" if line.parameters is None else f"{line.parameters / 1e6:.2f} M",
        spread(line.bleu),
        spread(line.chrf),
        spread(line.accuracy),
        "–" if line.p_value is None else f"{line.p_value:.3f}",
        spread([100 * rate for rate in line.error_rate], 1),
        "–" if line.train_tokens_per_second is None else f"{line.train_tokens_per_second:,.0f}",
        "–" if line.seconds_to_quality is None else spell_time(line.seconds_to_quality),
        "–" if line.decode_tokens_per_second is None else f"{line.decode_tokens_per_second:,.0f}",
    ]


def notes_of(lines: Sequence[Line], plan: Plan) -> list[str]:
    """What a reader must know to compare: signatures, seeds, device, what failed."""
    judged = sorted({JUDGED[line.judged] for line in lines if line.signatures})
    signatures = sorted({signature for line in lines for signature in line.signatures})
    devices = sorted({line.device for line in lines if line.device})
    bars = {line.quality for line in lines if line.quality is not None}
    sources, _ = plan.test_pairs()
    notes = [
        f"{'Test' if plan.test or not plan.scored else 'Validation'} set: "
        f"{' '.join(Path(file).name for file in plan.scored) or 'built-in'}, {len(sources):,} sentences; "
        f"seeds {', '.join(map(str, plan.seeds))}; ± is the standard deviation over seeds.",
    ]
    if signatures:
        notes += [
            f"Signatures: {'; '.join(signatures)}.",
            f"p: paired bootstrap on {' or '.join(judged)} against the row above, seed by seed, the largest of them.",
        ]
    if devices:
        notes.append(
            f"Speeds: target tokens a second, each row alone on {', '.join(devices)}; decoding with the search of the "
            "row's recipe."
        )
        notes += [
            f"Time to quality: target tokens until a validation BLEU of {bar:.2f} (greedy) is reached, at that speed."
            for bar in bars
        ]
    return notes + [f"{line.name} {line.lacking}" for line in lines if line.failed]


def to_markdown(lines: Sequence[Line], plan: Plan) -> str:
    """The table and its notes as Markdown."""

    def row(cells: Sequence[str]) -> str:
        return f"| {' | '.join(cell.replace('|', BAR) for cell in cells)} |\n"

    heads, *body = table_of(lines)
    table = f"{row(heads)}|{'---|' * len(heads)}\n" + "".join(map(row, body))
    return table + "\n" + "".join(f"- {note}\n" for note in notes_of(lines, plan))


def to_json(lines: Sequence[Line], plan: Plan) -> str:
    """All that was measured, for programs."""
    return json.dumps({"plan": asdict(plan), "rows": [asdict(line) for line in lines]}, ensure_ascii=False) + "\n"


def to_html(lines: Sequence[Line], plan: Plan, figures: Mapping[str, Path]) -> str:
    """One file that needs nothing else: the table, its notes and the figures drawn inside."""

    def unbroken(cell: str) -> str:
        return html.escape(cell).replace(" ± ", "&nbsp;±&nbsp;")

    def row(tag: str, cells: Sequence[str]) -> str:
        return "<tr>" + "".join(f"<{tag}>{unbroken(cell)}</{tag}>" for cell in cells) + "</tr>\n"

    drawings = "".join(
        f"<figure>{_inline(path)}<figcaption>{html.escape(title)}</figcaption></figure>\n"
        for title, path in figures.items()
    )
    heads, *body = table_of(lines)
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Saccade: {len(lines)} rows compared</title>
<style>
 :root {{ color-scheme: light dark; }}
 body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; }}
 .table {{ overflow-x: auto; }}
 table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; }}
 th, td {{ padding: .3rem .7rem; text-align: right; border-bottom: 1px solid #8886; }}
 th:first-child, td:first-child {{ text-align: left; }}
 li {{ overflow-wrap: anywhere; }}
 figure {{ margin: 2rem 0; }} figure svg {{ max-width: 100%; height: auto; background: #fff; }}
</style>
<h1>{len(lines)} rows compared</h1>
<div class="table"><table>
<thead>{row("th", heads)}</thead>
<tbody>{"".join(row("td", cells) for cells in body)}</tbody>
</table></div>
<ul>{"".join(f"<li>{html.escape(note)}</li>" for note in notes_of(lines, plan))}</ul>
{drawings}</html>
"""


def _inline(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    return text[text.index("<svg") :]
