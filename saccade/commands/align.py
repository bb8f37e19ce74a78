"""Word alignments: `saccade align` and `train-aligner`."""

import json
from collections.abc import Iterator
from itertools import islice, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saccade.commands.app import WINDOW, Device, Folder, app
from saccade.errors import SaccadeError

if TYPE_CHECKING:
    from saccade.alignment.align import Aligner, Held
    from saccade.display import Display

By = Annotated[
    str, typer.Option(help="attention, head (see `saccade train-aligner`), or auto: the head, if the folder has one.")
]
Reverse = Annotated[Path | None, typer.Option(help="A folder of the other direction: the links of both are made one.")]
Symmetrise = Annotated[
    str, typer.Option(help="How two directions become one: grow-diag-final-and, grow-diag, intersection or union.")
]
Held_ = Annotated[
    tuple[str, str] | None,
    typer.Option(help="Source and target text to choose the heads on. Default: the pairs themselves, up to 1,000."),
]
Heads = Annotated[
    str | None,
    typer.Option(help="Heads to read instead of choosing: `5.1,5.3` are heads 1 and 3 of layer 5, `5` is all of it."),
]


@app.command()
def align(
    folder: Folder,
    source: Annotated[str, typer.Argument(help="Source sentences, one a line.")],
    target: Annotated[str, typer.Argument(help="Their translations, one a line.")],
    reverse: Reverse = None,
    by: By = "auto",
    symmetrise: Symmetrise = "grow-diag-final-and",
    held_out: Held_ = None,
    heads: Heads = None,
    shifted: Annotated[
        bool, typer.Option("--shifted/--unshifted", help="With --heads: read one step later, or at the word's own.")
    ] = True,
    both_ways: Annotated[
        bool,
        typer.Option(help="Without --reverse: each source word also links to the target word that looks at it most."),
    ] = False,
    keep: Annotated[bool, typer.Option(help="Keep the chosen heads in the folders, for the next time.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="A line of JSON a pair, with probabilities.")] = False,
    device: Device = None,
) -> None:
    """Print which word of each target belongs to which of its source: `0-0 1-2`, source-target, a line a pair."""
    from saccade.display import Display

    display = Display()
    aligner = make_aligner(
        folder,
        (source, target),
        reverse=reverse,
        by=by,
        symmetrise=symmetrise,
        held_out=held_out,
        heads=heads,
        shifted=shifted,
        both_ways=both_ways,
        keep=keep,
        device=device,
        display=display,
    )
    with display.task("aligning") as progress:
        pairs = read_pairs(source, target)
        shown = read_pairs(source, target) if as_json else pairs
        for aligned in aligner.stream(pairs, WINDOW, progress):
            if as_json:
                sides = next(shown)
                links = [[*link, round(sure, 4)] for link, sure in zip(*aligned, strict=True)]
                line = {"source": sides[0].split(), "target": sides[1].split(), "links": links}
                typer.echo(json.dumps(line, ensure_ascii=False))
            else:
                typer.echo(aligned.pharaoh)


@app.command()
def train_aligner(
    folder: Folder,
    source: Annotated[str, typer.Argument(help="Source sentences, one a line.")],
    target: Annotated[str, typer.Argument(help="Their translations, one a line.")],
    links: Annotated[str, typer.Option(help="The links to learn, in Pharaoh format: what `saccade align` printed.")],
    flipped: Annotated[
        bool, typer.Option(help="The links are target-source: of a folder of the other direction.")
    ] = False,
    epochs: Annotated[int, typer.Option(help="Times that the text is gone through.", min=1)] = 2,
    rate: Annotated[float, typer.Option(help="Highest learning rate.", min=0)] = 1e-3,
    seed: Annotated[int, typer.Option(help="Seed of weights and order.", min=0)] = 1,
    device: Device = None,
) -> None:
    """Train an alignment head on a folder's frozen model, and keep it in the folder, where `saccade align` finds it."""
    from saccade.alignment.train_head import Text, train_head
    from saccade.display import Display
    from saccade.evaluation.alignment import read_pharaoh
    from saccade.folder import load

    gold = [line.possible for line in read_pharaoh(links)]
    if flipped:
        gold = [frozenset((t, s) for s, t in line) for line in gold]
    sources, targets = (list(side) for side in zip(*read_pairs(source, target), strict=True))
    translator = load(folder, device, engine="torch")
    text = Text(sources, targets, gold)
    trained = train_head(translator, text, epochs=epochs, rate=rate, seed=seed, display=Display())
    facts = {"pairs": len(sources), "links": links, "steps": trained.steps, "agreement": trained.agreement}
    trained.reader.save(folder, facts)
    typer.echo(
        f"{folder}: an alignment head, {trained.steps:,} steps; on pairs kept aside it finds the links it was given "
        f"with F1 {trained.agreement:.1%} (threshold {trained.reader.threshold:g})"
    )
    if trained.agreement < 0.5:
        typer.echo("that is little: give more text or --epochs, or align with --by attention", err=True)


def score_links(
    system: Path,
    gold: str,
    source: str | None,
    target: list[str] | None,
    reverse: Path | None,
    device: str | None,
    as_json: bool,
) -> None:
    """Print how well the links of a folder, or those in a file, agree with the gold."""
    from saccade.display import Display
    from saccade.evaluation.alignment import check_links, read_pharaoh, score_alignment

    if system.is_file():
        found = [line.possible for line in read_pharaoh(str(system))]
    else:
        if source is None or not target:
            raise SaccadeError(
                "--gold: the sentences that the links belong to are needed; give --source and --reference"
            )
        text = source, target[0]
        pairs = list(read_pairs(*text))
        check_links(gold, read_pharaoh(gold), [s for s, _ in pairs], [t for _, t in pairs])
        aligner = make_aligner(system, text, reverse=reverse, device=device, display=Display())
        found = [frozenset(aligned.links) for aligned in aligner.stream(iter(pairs), WINDOW)]
    score = score_alignment(found, read_pharaoh(gold))
    if as_json:
        typer.echo(json.dumps(score._asdict(), indent=1))
        return
    typer.echo(f"alignment error rate {score.error_rate:.1%}")
    typer.echo(f"precision {score.precision:.1%}")
    typer.echo(f"recall {score.recall:.1%}")


def make_aligner(
    folder: Path,
    text: tuple[str, str],
    *,
    reverse: Path | None = None,
    by: str = "auto",
    symmetrise: str = "grow-diag-final-and",
    held_out: tuple[str, str] | None = None,
    heads: str | None = None,
    shifted: bool = True,
    both_ways: bool = False,
    keep: bool = False,
    device: str | None,
    display: "Display",
) -> "Aligner":
    """What the options describe; what was chosen is said."""
    from saccade.alignment.align import Aligner, AttentionReader, Reader, attention_readers, reader_for
    from saccade.alignment.choice import parse_heads
    from saccade.folder import load

    translator = load(folder, device, engine="torch")
    other = None if reverse is None else load(reverse, device, engine="torch")
    if heads is not None:
        if other is not None:
            raise SaccadeError("--heads names the heads of one folder; leave out --reverse, or keep a choice in each")
        return Aligner(
            AttentionReader(translator, parse_heads(heads, shifted, translator)), None, symmetrise, both_ways
        )
    forward: Reader | None = None
    backward: Reader | None = None
    if held_out is None:  # text to choose on means: choose
        forward = reader_for(translator, folder, by)
        backward = None if other is None or reverse is None else reader_for(other, reverse, by)
    if forward is None or (other is not None and backward is None):
        there, back = attention_readers(translator, other, _held(held_out or text), display)
        for place, reader in ((folder, there), (reverse, back)):
            if reader is not None and place is not None:
                display.say(f"{place}: {reader.choice}")
                if keep:
                    reader.choice.save(place)
        forward, backward = there, back
    return Aligner(forward, backward, symmetrise, both_ways)


def read_pairs(source: str, target: str) -> Iterator[tuple[str, str]]:
    """Line by line; files of different lengths are refused when the shorter ends."""
    from saccade.data.lines import read_lines

    for number, (one, other) in enumerate(zip_longest(read_lines(source), read_lines(target)), start=1):
        if one is None or other is None:
            shorter, longer = (source, target) if one is None else (target, source)
            raise SaccadeError(f"{shorter} ends before {longer}, at line {number:,}; give as many of each")
        yield one, other


def _held(text: tuple[str, str]) -> "Held":
    from saccade.alignment.align import Held

    if "-" in text:
        raise SaccadeError("standard input can be read only once; choose the heads on --held-out, or with --heads")
    pairs = list(islice(read_pairs(*text), 100_000))
    sources, targets = zip(*pairs, strict=True) if pairs else ((), ())
    return Held(sources, targets)
