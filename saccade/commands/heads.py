"""What each head does, and a model with fewer of them: `saccade heads`."""

import json
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from saccade.commands.app import Device, Folder, app
from saccade.errors import SaccadeError

if TYPE_CHECKING:
    from saccade.analysis.agreement import Agreement
    from saccade.analysis.kinds import HeadReport
    from saccade.analysis.silence import Silencing


@app.command()
def heads(
    folder: Folder,
    data: Annotated[tuple[str, str], typer.Option(help="Sentences to look at: source and target.")],
    conllu: Annotated[
        str | None, typer.Option(help="Source sentences with dependencies (CoNLL-U): which heads follow them?")
    ] = None,
    pairs: Annotated[int, typer.Option(help="Of --data, so many pairs are looked at.", min=1)] = 500,
    silence: Annotated[bool, typer.Option(help="What BLEU loses without each head, and without more of them.")] = False,
    silence_pairs: Annotated[int, typer.Option(help="Pairs translated for each BLEU.", min=1)] = 200,
    beam: Annotated[int, typer.Option(help="Hypotheses kept alive when BLEU is measured.", min=1)] = 1,
    prune: Annotated[
        int | None, typer.Option(help="Cut so many heads out, those that cost least first; needs --out.", min=1)
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The pruned folder to make.")] = None,
    agreement: Annotated[
        int, typer.Option(help="Pairs on which attention is compared with gradients and erasure.", min=0)
    ] = 0,
    figure: Annotated[Path | None, typer.Option(help="Draw the curve of --silence: .png, .svg or .pdf.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    device: Device = None,
) -> None:
    """Sort the heads of a Transformer by what they do, with the measure behind each; silence them, prune them."""
    from saccade.analysis.conllu import read_conllu
    from saccade.analysis.kinds import describe, pair_batches
    from saccade.analysis.prune import bought
    from saccade.analysis.prune import prune as make_pruned
    from saccade.analysis.silence import Judge, removable, work
    from saccade.analysis.silence import silence as silence_heads
    from saccade.analysis.syntax import follow
    from saccade.commands.align import read_pairs
    from saccade.display import Display
    from saccade.files import writing
    from saccade.folder import load
    from saccade.looking.figures import check_figure
    from saccade.models.heads import head_names, refuse_to_prune

    if (prune is None) != (out is None):
        raise SaccadeError("--prune says how many heads go and --out where the folder is made; give both or neither")
    if figure is not None:
        check_figure(figure)
    display = Display()
    translator = load(folder, device, engine="torch")
    text = list(islice(read_pairs(*data), max(pairs, silence_pairs)))
    if not text:
        raise SaccadeError(f"{data[0]}: empty; give sentences to look at")
    if prune is not None:
        refuse_to_prune(translator.model)
        most = len(removable(head_names(translator.model)))
        if prune > most:
            raise SaccadeError(f"--prune {prune}: at most {most} heads can go, one of each attention stays")
    sources, targets = ([pair[side] for pair in text] for side in (0, 1))
    batches = pair_batches(translator, sources[:pairs], targets[:pairs])
    relations = None if conllu is None else follow(translator, list(read_conllu(conllu)))
    with display.task("looking at heads", len(batches)) as progress:
        reports = describe(translator, batches, relations, progress)
    answer: dict[str, Any] = {"heads": [report.to_dict() for report in reports]}
    tables = [_heads_table(reports)]
    if silence or prune is not None or figure is not None:
        judge = Judge(translator, sources[:silence_pairs], targets[:silence_pairs], beam)
        with display.task("silencing heads", work(translator)) as progress:
            lost = silence_heads(judge, progress)
        answer["silencing"] = lost.to_dict()
        tables += _silence_tables(lost)
        if figure is not None:
            _draw(lost, figure)
        if prune is not None and out is not None:
            gone = removable(lost.order)[:prune]
            with writing(out, "choose another --out"):
                smaller = make_pruned(folder, gone, out)
            whole = load(folder, "cpu", engine="torch")
            gained = bought(whole, smaller, len(gone), sources[:silence_pairs], beam)
            before, after = judge()[0], Judge(smaller, judge.sources, judge.references, beam)()[0]
            answer["pruned"] = {
                "folder": str(out),
                "heads": [str(name) for name in gone],
                "parameters": list(gained.parameters),
                "seconds": list(gained.seconds),
                "bleu": [before, after],
            }
            tables.append(_pruned_table(out, answer["pruned"]))
    if agreement:
        from saccade.analysis.agreement import measure

        with display.task("asking gradients and erasure", min(agreement, len(text))) as progress:
            agreed = measure(translator, sources[:agreement], targets[:agreement], progress)
        answer["agreement"] = [each._asdict() for each in agreed]
        tables.append(_agreement_table(agreed))
    if as_json:
        typer.echo(json.dumps(answer, indent=1, ensure_ascii=False))
        return
    console = Console()
    for table in tables:
        title, table.title = table.title, None  # which would be broken to the table's width
        console.print(f"\n[bold]{title}[/]", soft_wrap=True)
        console.print(table)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", pad_edge=False, box=None)
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number in (0, len(columns) - 1) else "right", no_wrap=True)
    return table


def _heads_table(reports: "list[HeadReport]") -> Table:
    from saccade.analysis.kinds import counts

    said = ", ".join(f"{count} {kind}" for kind, count in counts(reports).items())
    columns = (
        "head",
        "entropy",
        "distance",
        "previous",
        "diagonal",
        "next",
        "delimiter",
        "rare",
        "copying",
        "what it is",
    )
    table = _table(f"{len(reports)} heads: {said}", *columns)
    for report in reports:
        syntax = ""
        if report.relation is not None:
            syntax = (
                f"; {report.relation.name} {report.relation.accuracy:.0%} (distance: {report.relation.baseline:.0%})"
            )
        table.add_row(
            str(report.name),
            f"{report.entropy:.2f}",
            f"{report.distance:.1f}",
            *(f"{share:.0%}" for share in report.offsets.values()),
            f"{report.delimiter:.0%}",
            f"{report.rare:.0%}",
            "–" if report.copying is None else f"{report.copying:.0%}",
            ", ".join(report.kinds) + syntax,
        )
    return table


def _silence_tables(lost: "Silencing") -> list[Table]:
    each = _table(
        f"without one head (BLEU {lost.bleu:.2f} with all), least lost first", "head", "BLEU lost", "nats added"
    )
    for loss in lost.losses:
        each.add_row(str(loss.name), f"{loss.bleu:+.2f}", f"{loss.nll:+.4f}")
    curve = _table("without more and more of them", "heads gone", "BLEU", "nats a token")
    for point in lost.curve:
        curve.add_row(str(point.silenced), f"{point.bleu:.2f}", f"{point.nll:.4f}")
    return [each, curve]


def _pruned_table(out: Path, facts: dict[str, Any]) -> Table:
    table = _table(f"{out}: without {', '.join(facts['heads'])}", "", "before", "after")
    table.add_row("parameters", *(f"{value:,}" for value in facts["parameters"]))
    table.add_row("seconds to translate", *(f"{value:.2f}" for value in facts["seconds"]))
    table.add_row("BLEU", *(f"{value:.2f}" for value in facts["bleu"]))
    return table


def _agreement_table(agreed: "list[Agreement]") -> Table:
    words = agreed[0].words if agreed else 0
    table = _table(
        f"do they agree on what mattered? ({words:,} target words)", "", "rank correlation", "same word first"
    )
    for each in agreed:
        names = [name.replace("_input", " × input").replace("_", " ") for name in (each.one, each.other)]
        table.add_row(" and ".join(names), f"{each.spearman:.2f}", f"{each.same_word:.0%}")
    return table


def _draw(lost: "Silencing", path: Path) -> None:
    from saccade.looking.figures import save_figure
    from saccade.looking.plots import Curves, Plot, Series

    counts = [point.silenced for point in lost.curve]
    series = (Series.of("BLEU", counts, [point.bleu for point in lost.curve]),)
    save_figure(Plot("Heads silenced, least lost first", (Curves("BLEU", "heads gone", "BLEU", series),)), path)
