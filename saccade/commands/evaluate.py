"""How good a folder is: `saccade evaluate`, `score` and `compare`."""

import json
from collections.abc import Iterator
from itertools import islice, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saccade.commands.app import WINDOW, Device, Engine, Folder, Source, app
from saccade.errors import SaccadeError

if TYPE_CHECKING:
    from saccade.config import Config
    from saccade.evaluation.metrics import Score

MOST_CONFUSED = 5  # pairs of labels that `evaluate` names; --json gives all


@app.command()
def evaluate(
    folder: Annotated[Path, typer.Argument(help="A folder, or a file of translations; with --gold, of links.")],
    reference: Annotated[
        list[str] | None, typer.Option(help="Reference translations; may be given more than once.")
    ] = None,
    source: Source = None,
    gold: Annotated[
        str | None,
        typer.Option(
            help="Links drawn by hand (Pharaoh format): alignment error rate between --source and --reference."
        ),
    ] = None,
    reverse: Annotated[
        Path | None, typer.Option(help="With --gold, a folder of the other direction: links are made one.")
    ] = None,
    perplexity: Annotated[
        bool, typer.Option(help="How well the folder foretells the reference, instead of how well it translates.")
    ] = False,
    against: Annotated[
        Path | None, typer.Option(help="A second folder or file of translations: is the first one better?")
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            help="bleu, chrf, chrf++, ter or accuracy; may be given more than once. Default: bleu, chrf and ter; "
            "accuracy for a classifier's folder."
        ),
    ] = None,
    tokenize: Annotated[
        str | None,
        typer.Option(help="sacrebleu's tokenizer: 13a, zh, char, none. Default: by language; none for tokenised text."),
    ] = None,
    lowercase: Annotated[bool, typer.Option(help="Ignore case.")] = False,
    samples: Annotated[int, typer.Option(help="Bootstrap samples for --against.")] = 1000,
    beam: Annotated[int | None, typer.Option(help="Hypotheses kept alive; 1 is greedy.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    device: Device = None,
    engine: Engine = "auto",
) -> None:
    """Score translations: BLEU, chrF and TER with their signatures, or the accuracy of labels; two systems with paired
    bootstrap significance. A language model, or with `--perplexity`: perplexity and bits a character of the reference.
    With `--gold`: alignment error rate, precision and recall of the folder's alignments, or of a file of links.
    """
    from saccade.data.corpora import read_lines
    from saccade.evaluation.accuracy import confusions
    from saccade.evaluation.metrics import compare_systems, metrics_for, score_corpus, tokenizer_for

    if gold is not None:
        from saccade.commands.align import score_links

        score_links(folder, gold, source, reference, reverse, device, as_json)
        return
    if not reference:
        raise SaccadeError("there is nothing to compare with; give --reference, or --gold for alignments")
    if perplexity or source is None:
        foretold = _foretold(folder, source, reference, against, device)
        answer = {"scores": [s.to_dict() for s in foretold], "comparisons": []}
        typer.echo(json.dumps(answer, indent=1) if as_json else "\n".join(map(str, foretold)))
        return
    sources = list(read_lines(source))
    references = [list(read_lines(file)) for file in reference]
    for file, lines in zip(reference, references, strict=True):  # before anything is translated
        if len(lines) != len(sources):
            raise SaccadeError(
                f"--source {source} has {len(sources):,} lines, --reference {file} {len(lines):,}; line n of one "
                "belongs to line n of the other"
            )
    config = _config_of(folder)
    tokenize = tokenize or tokenizer_for(config.data.target, references[0])
    metrics = metric or metrics_for(config.model.family)
    system = _translations(folder, sources, beam, device, engine)
    scores = score_corpus(system, references, metrics=metrics, tokenize=tokenize, lowercase=lowercase)
    confused = confusions(system, references, lowercase=lowercase) if "accuracy" in metrics else []
    comparisons = []
    if against is not None:
        baseline = _translations(against, sources, beam, device, engine)
        comparisons = compare_systems(
            baseline,
            system,
            references,
            metrics=metrics,
            samples=samples,
            tokenize=tokenize,
            lowercase=lowercase,
        )
    if as_json:
        answer = {"scores": [s.to_dict() for s in scores], "comparisons": [c.to_dict() for c in comparisons]}
        if "accuracy" in metrics:
            answer["confusions"] = [c._asdict() for c in confused]
        typer.echo(json.dumps(answer, indent=1))
        return
    if against is not None:
        typer.echo(f"{against} → {folder}:", err=True)
    shown: list[Any] = [*comparisons] or [*scores, *confused[:MOST_CONFUSED]]
    for line in shown:
        typer.echo(str(line))


@app.command()
def score(
    folder: Folder,
    target: Annotated[str, typer.Option(help="Target sentences, one a line.")],
    source: Source = None,
    device: Device = None,
) -> None:
    """Print log P(target | source) of each pair, of a language model log P(target), one number a line."""
    from saccade.data.corpora import read_lines
    from saccade.folder import load

    translator = load(folder, device)
    if source is None:
        _check_alone(translator.config, folder)
        targets = read_lines(target)
        while lines := list(islice(targets, WINDOW)):
            for value in translator.score([""] * len(lines), lines):
                typer.echo(f"{value:.6f}")
        return
    sources, targets = read_lines(source), read_lines(target)
    done = 0
    while window := list(zip_longest(islice(sources, WINDOW), islice(targets, WINDOW))):
        if None in (pair := window[-1]):
            shorter, longer = (source, target) if pair[0] is None else (target, source)
            raise SaccadeError(
                f"{shorter} ends before {longer}, within {done + len(window):,} lines; give as many of each"
            )
        for value in translator.score([s for s, _ in window], [t for _, t in window]):
            typer.echo(f"{value:.6f}")
        done += len(window)


@app.command()
def compare(
    arguments: Annotated[
        list[str],
        typer.Argument(
            help="Recipes to train, trained folders, and settings for all of them (`section.key=value`).",
            metavar="RECIPES… [SECTION.KEY=VALUE]...",
        ),
    ],
    data: Annotated[
        tuple[str, str] | None, typer.Option(help="Training files, source and target. Default: built-in.")
    ] = None,
    valid: Annotated[
        tuple[str, str] | None,
        typer.Option(help="Validation files, source and target. Default: each row holds pairs of --data out."),
    ] = None,
    test: Annotated[
        tuple[str, str] | None,
        typer.Option(help="Test files, source and reference. With --data, --valid does for tuning; one is needed."),
    ] = None,
    gold: Annotated[str | None, typer.Option(help="Word links drawn by hand (Pharaoh format), for AER.")] = None,
    gold_text: Annotated[tuple[str, str] | None, typer.Option(help="The sentences of --gold.")] = None,
    out: Annotated[Path, typer.Option(help="Where models, table and figures go.")] = Path("runs/compare"),
    seeds: Annotated[int, typer.Option(help="Train each recipe so many times, with seeds 1, 2, …", min=1)] = 1,
    jobs: Annotated[int, typer.Option(help="Rows trained at the same time, sharing the cores.", min=1)] = 1,
    quality: Annotated[
        float | None, typer.Option(help="Validation BLEU whose time is given. Default: 90% of the best seen.")
    ] = None,
    sentence: Annotated[
        int | None, typer.Option(help="Number of the test sentence whose alignments are drawn, from 0.")
    ] = None,
    speed: Annotated[bool, typer.Option(help="Measure how fast each row learns and writes, one at a time.")] = True,
    device: Device = None,
) -> None:
    """Train or load each recipe and write one table of what each bought: Markdown, JSON, HTML, figures.

    Goes on where it was stopped; a row that fails is named and the others are kept.
    """
    from saccade.comparing.plan import Plan, rows_of
    from saccade.comparing.run import compare as run_comparison
    from saccade.config import split_arguments
    from saccade.display import Display

    recipes, overrides = split_arguments(arguments)
    rows = rows_of([Path(recipe) for recipe in recipes])
    plan = Plan(
        out=str(out),
        data=data or (),
        valid=valid or (),
        test=test or (),
        gold=gold,
        gold_text=gold_text or (),
        overrides=tuple(overrides),
        seeds=tuple(range(1, seeds + 1)),
        device=device,
        shown=sentence,
    )
    lines = run_comparison(rows, plan, jobs=jobs, quality=quality, speed=speed, display=Display())
    typer.echo((out / "table.md").read_text(encoding="utf-8"), nl=False)
    typer.echo(f"{out}/index.html", err=True)
    if failed := [line.name for line in lines if line.failed]:
        raise SaccadeError(f"{len(failed)} of {len(lines)} rows failed: {', '.join(failed)}; see the notes above")


def _translations(system: Path, sources: list[str], beam: int | None, device: str | None, engine: str) -> list[str]:
    """What a folder makes of the sources, or the lines of a file of translations."""
    from saccade.data.corpora import read_lines
    from saccade.display import Display
    from saccade.folder import load
    from saccade.text.pipeline import Pipeline

    if system.is_file():
        return list(read_lines(system))
    search: dict[str, Any] = {} if beam is None else {"beam": beam}

    def translated() -> Iterator[str]:
        with Display().task(f"translating with {system}", len(sources)) as progress:
            pipeline = Pipeline(load(system, device, engine=engine), **search)
            for translation in pipeline.stream(sources, progress, scored=False):
                yield translation.text

    return list(translated())


def _foretold(
    folder: Path, source: str | None, reference: list[str], against: Path | None, device: str | None
) -> "list[Score]":
    """How well a folder foretells a text, given its sources or by itself."""
    from saccade.data.corpora import read_lines
    from saccade.evaluation.perplexity import perplexity
    from saccade.folder import load

    if against is not None or len(reference) > 1:
        raise SaccadeError("perplexity is of one folder and one --reference; leave out --against and further ones")
    if folder.is_file():
        raise SaccadeError(f"{folder}: a file foretells nothing; give --source, and no --perplexity, to score it")
    translator = load(folder, device)
    targets = list(read_lines(reference[0]))
    if source is None:
        _check_alone(translator.config, folder)
    return perplexity(translator, [""] * len(targets) if source is None else list(read_lines(source)), targets)


def _check_alone(config: "Config", folder: Path) -> None:
    """Refuse to do without sources where the model was trained on them."""
    if not config.data.monolingual:
        raise SaccadeError(f"{folder}: was trained on pairs, so its sources are needed; give them with --source")


def _config_of(system: Path) -> "Config":
    """The settings of a folder; a file of translations has none: the defaults."""
    from saccade.config import Config

    if system.is_dir():
        return Config.load(system / "config.yaml")
    return Config.load(None, ["data.target=en"])
