"""The command line: one function a command."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice, zip_longest
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from saccade.errors import SaccadeError

if TYPE_CHECKING:
    from saccade.config import Config
    from saccade.evaluation.metrics import Score
    from saccade.generation.ensemble import Mean

app = typer.Typer(
    name="saccade",
    help="Sequence-to-sequence learning with attention: pairs in, a translator out.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)

WINDOW = 4096  # lines translated at once: enough to sort by length, few enough to hold
MOST_CONFUSED = 5  # pairs of labels that `evaluate` names; --json gives all

Folder = Annotated[Path, typer.Argument(help="A folder that `saccade train` made.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 or mps. Default: a GPU if there is one.")]
Engine = Annotated[
    str,
    typer.Option(help="torch, ctranslate2 (see `saccade export`), or auto: the latter on a CPU, if it was exported."),
]
Source = Annotated[
    str | None,
    typer.Option(
        help="Source sentences, one a line (.gz is read as it is, - is standard input). Left out for a language model "
        "of one text."
    ),
]


@app.command(epilog="All settings, a sentence each: `saccade settings`; of one section: `saccade settings training`.")
def train(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            help="Corpus files (source target, one text file for a language model, or TSV, JSONL, Parquet; `.gz` too; "
            "`-` is TSV on standard input; `hub:NAME` a public dataset) and settings (`section.key=value`). No files: "
            "the built-in corpus.",
            metavar="[FILES] [SECTION.KEY=VALUE]...",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder to make.")] = Path("runs/model"),
    config: Annotated[Path | None, typer.Option("--config", "-c", help="A YAML file of settings.")] = None,
    valid: Annotated[
        tuple[str, str] | None, typer.Option(help="Validation files, source and target. Default: held out.")
    ] = None,
    start_from: Annotated[Path | None, typer.Option("--from", help="Fine-tune this folder.")] = None,
    clean: Annotated[bool, typer.Option("--clean/--no-clean", help="Drop bad pairs, and say which.")] = True,
    restart: Annotated[bool, typer.Option(help="Throw away what is in the folder.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors.")] = False,
) -> None:
    """Train a translator, or go on with one that was stopped."""
    from saccade import api

    api.train(
        *(arguments or []),
        out=out,
        config=config,
        valid=valid or (),
        start_from=start_from,
        clean=clean,
        restart=restart,
        quiet=quiet,
    )


@app.command()
def translate(
    folder: Folder,
    text: Annotated[str | None, typer.Argument(help="The same as --input.")] = None,
    input: Annotated[str, typer.Option("--input", "-i", help="Text, one sentence a line; - is standard input.")] = "-",
    output: Annotated[str, typer.Option("--output", "-o", help="Where to write; - is standard output.")] = "-",
    beam: Annotated[int | None, typer.Option(help="Hypotheses kept alive; 1 is greedy.")] = None,
    length_penalty: Annotated[float | None, typer.Option(help="α of Wu et al. 2016.")] = None,
    coverage_penalty: Annotated[float | None, typer.Option(help="β of Wu et al. 2016.")] = None,
    n_best: Annotated[
        int | None,
        typer.Option(help="Write so many translations a sentence, as `number ||| text ||| log-probability`."),
    ] = None,
    device: Device = None,
    method: Annotated[str | None, typer.Option(help="beam, diverse (a beam in groups) or sample.")] = None,
    groups: Annotated[int | None, typer.Option(help="Groups of a diverse beam.")] = None,
    diversity: Annotated[float | None, typer.Option(help="How much the groups keep apart.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Sampling: less than 1 is more careful.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Sample from so many of the likeliest.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Sample from the likeliest of this probability.")] = None,
    min_p: Annotated[float | None, typer.Option(help="Sample from those at least so likely, beside the best.")] = None,
    typical: Annotated[float | None, typer.Option(help="Sample from the typical of this probability.")] = None,
    seed: Annotated[int | None, typer.Option(help="Another seed, other samples.")] = None,
    mbr: Annotated[
        int | None, typer.Option(help="Find so many candidates and choose by minimum Bayes risk (chrF).")
    ] = None,
    ensemble: Annotated[
        list[Path] | None,
        typer.Option(help="A folder with the same vocabulary, to write together; may be given more than once."),
    ] = None,
    ensemble_log: Annotated[
        bool, typer.Option("--ensemble-log", help="Take the mean of log-probabilities, not of probabilities.")
    ] = False,
    rerank: Annotated[
        Path | None, typer.Option(help="A second folder that judges what the beam has found, of any vocabulary.")
    ] = None,
    rerank_weight: Annotated[float, typer.Option(help="How much it says beside the first, which has 1.")] = 1.0,
    rerank_reverse: Annotated[
        bool, typer.Option("--rerank-reverse", help="It translates back: judge by log P(source | target).")
    ] = False,
    min_length: Annotated[int | None, typer.Option(help="Fewest pieces of a translation.")] = None,
    max_length: Annotated[int | None, typer.Option(help="Most pieces of a translation.")] = None,
    no_repeat_ngram: Annotated[int | None, typer.Option(help="No n-gram of so many pieces twice.")] = None,
    repetition_penalty: Annotated[float | None, typer.Option(help="θ of Keskar et al. 2019; 1 is none.")] = None,
    banned: Annotated[list[str] | None, typer.Option(help="A word never to write; may be given again.")] = None,
    must: Annotated[
        list[str] | None, typer.Option(help="A phrase that every line must hold; may be given again.")
    ] = None,
    shortlist: Annotated[str | None, typer.Option(help="A file of words: only their pieces are written.")] = None,
    prefix_column: Annotated[
        bool, typer.Option("--prefix-column", help="A line is `source TAB prefix`: how its translation begins.")
    ] = False,
    constraints_column: Annotated[
        bool,
        typer.Option(
            "--constraints-column", help="A line ends in columns of phrases that its translation must hold, one each."
        ),
    ] = False,
    guard: Annotated[
        bool | None,
        typer.Option("--guard/--no-guard", help="Decode again what repeats itself or runs on. Default: do."),
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="Split lines into sentences: auto (too long ones), always or never.")
    ] = None,
    protect: Annotated[
        str | None,
        typer.Option(help="What comes through untouched: tags,variables,urls,emails,numbers (default: all) or none."),
    ] = None,
    term: Annotated[
        list[str] | None, typer.Option(help="A word to leave as it is; may be given more than once.")
    ] = None,
    glossary: Annotated[
        Path | None, typer.Option(help="Terms with one translation: `source term<TAB>target term` lines.")
    ] = None,
    resume: Annotated[
        bool, typer.Option(help="Go on with OUTPUT.partial, which a run with --resume leaves when it is stopped.")
    ] = False,
    engine: Engine = "auto",
) -> None:
    """Translate: one line in, one line out."""
    from saccade.data.corpora import read_lines
    from saccade.display import Display
    from saccade.files import writing
    from saccade.folder import load
    from saccade.generation.columns import Columns
    from saccade.generation.guard import Tally
    from saccade.generation.rerank import Judge
    from saccade.text.glossary import Glossary
    from saccade.text.pipeline import Pipeline
    from saccade.text.streaming import may_wait, windows

    mean: Mean = "log-probabilities" if ensemble_log else "probabilities"
    translator = load([folder, *ensemble] if ensemble else folder, device, mean=mean, engine=engine)
    judges = [Judge(load(rerank, device), rerank_weight, rerank_reverse)] if rerank is not None else []
    named = {
        "beam": beam,
        "length_penalty": length_penalty,
        "coverage_penalty": coverage_penalty,
        "n_best": n_best,
        "method": method,
        "groups": groups,
        "diversity": diversity,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "typical": typical,
        "seed": seed,
        "mbr": mbr,
        "min_length": min_length,
        "max_length": max_length,
        "no_repeat_ngram": no_repeat_ngram,
        "repetition_penalty": repetition_penalty,
        "banned": banned or None,
        "shortlist": shortlist,
        "guard": guard,
        "split": split,
        "protect": None if protect is None else [kind for kind in protect.split(",") if kind not in ("", "none")],
        "terms": term,
    }
    search: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
    if (note := translator.engine_note(**search)) is not None and engine == "auto":
        Display().say(note)
    columns = Columns(prefix_column, constraints_column, tuple(must or ()))
    guarded = Tally()
    pipeline = Pipeline(translator, Glossary.read(glossary) if glossary else None, judges, **search)
    source, number = text or input, 0
    typed = source == "-" and sys.stdin.isatty()  # a bar would stand in the way of what a person types
    with (
        writing(output),
        _output(output, resume, numbered=bool(n_best)) as (file, done),
        Display(quiet=typed).task("translating") as progress,
    ):
        for window in windows(read_lines(source), WINDOW, may_wait(source)):
            begin, number = number, number + len(window)
            if number <= done:
                continue  # written before the run was stopped
            shown = partial(_shown, progress, begin)
            sources, told = columns.read(window, first=begin + 1)
            for i, translation in enumerate(
                pipeline.stream(sources, shown, begin + 1, scored=bool(n_best), **told), start=begin
            ):
                guarded.count(i + 1, translation.notes)
                if i < done:
                    continue
                for best in translation.n_best or [translation]:
                    file.write(f"{i} ||| {best.text} ||| {best.score:.4f}\n" if n_best else best.text + "\n")
                    if not n_best:
                        break
                file.flush()
        if number < done:
            raise SaccadeError(
                f"{output}.partial has {done:,} lines, {source} only {number:,}: it was made from another file; "
                "remove it to begin anew"
            )
    if said := guarded.summary(number):
        typer.echo(said, err=True)


@app.command()
def evaluate(
    folder: Annotated[Path, typer.Argument(help="A folder, or a file of translations.")],
    reference: Annotated[list[str], typer.Option(help="Reference translations; may be given more than once.")],
    source: Source = None,
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
    """
    from saccade.data.corpora import read_lines
    from saccade.evaluation.accuracy import confusions
    from saccade.evaluation.metrics import compare_systems, metrics_for, score_corpus, tokenizer_for

    if perplexity or source is None:
        foretold = _foretold(folder, source, reference, against, device)
        answer = {"scores": [s.to_dict() for s in foretold], "comparisons": []}
        typer.echo(json.dumps(answer, indent=1) if as_json else "\n".join(map(str, foretold)))
        return
    sources = list(read_lines(source))
    references = [list(read_lines(file)) for file in reference]
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
        tuple[str, str] | None, typer.Option(help="Validation files, source and target. Default: held out.")
    ] = None,
    test: Annotated[tuple[str, str] | None, typer.Option(help="Test files, source and reference.")] = None,
    gold: Annotated[str | None, typer.Option(help="Word links drawn by hand (Pharaoh format), for AER.")] = None,
    gold_text: Annotated[tuple[str, str] | None, typer.Option(help="The sentences of --gold.")] = None,
    out: Annotated[Path, typer.Option(help="Where models, table and figures go.")] = Path("runs/compare"),
    seeds: Annotated[int, typer.Option(help="Train each recipe so many times, with seeds 1, 2, …", min=1)] = 1,
    jobs: Annotated[int, typer.Option(help="Rows trained at the same time.", min=1)] = 1,
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
    from saccade.config import is_override
    from saccade.display import Display

    overrides = tuple(argument for argument in arguments if is_override(argument))
    rows = rows_of([Path(argument) for argument in arguments if not is_override(argument)])
    plan = Plan(
        out=str(out),
        data=data or (),
        valid=valid or (),
        test=test or (),
        gold=gold,
        gold_text=gold_text or (),
        overrides=overrides,
        seeds=tuple(range(1, seeds + 1)),
        device=device,
        shown=sentence,
    )
    lines = run_comparison(rows, plan, jobs=jobs, quality=quality, speed=speed, display=Display())
    typer.echo((out / "table.md").read_text(encoding="utf-8"), nl=False)
    typer.echo(f"{out}/index.html", err=True)
    if failed := [line.name for line in lines if line.failed]:
        raise SaccadeError(f"{len(failed)} of {len(lines)} rows failed: {', '.join(failed)}; see the notes above")


@app.command()
def info(folder: Folder, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Say what is in a folder: model, parameters, data, scores."""
    from saccade.summary import summarise

    facts = summarise(folder)
    if as_json:
        typer.echo(json.dumps(facts, indent=1, ensure_ascii=False))
        return
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in facts.items():
        shown = "\n".join(map(str, value)) if isinstance(value, list) else str(value)
        table.add_row(f"[bold]{name}[/]", escape(shown))
    Console().print(table)


@app.command()
def average(
    inputs: Annotated[
        list[Path], typer.Argument(help="A folder in training (its last checkpoints), or files of weights.")
    ],
    out: Annotated[Path, typer.Option(help="The folder to make: a copy with the mean weights.")],
    last: Annotated[int, typer.Option(help="How many checkpoints of a folder to take.")] = 5,
) -> None:
    """Average checkpoints into a new folder."""
    from saccade.summary import average_into

    for line in average_into(inputs, out, last):
        typer.echo(line)


@app.command()
def corpus(
    source: Annotated[str, typer.Argument(help="Locale of the source side, e.g. en.")] = "en",
    target: Annotated[str, typer.Argument(help="Locale of the target side, e.g. de.")] = "de",
    out: Annotated[Path, typer.Option(help="Write OUT.SOURCE and OUT.TARGET, e.g. dates.en and dates.de.")] = Path(
        "dates"
    ),
    pairs: Annotated[int, typer.Option(help="How many pairs.", min=1)] = 12_000,
    split: Annotated[str, typer.Option(help="train, valid or test: no value is in two of them.")] = "train",
    seed: Annotated[int, typer.Option(help="Another seed, other pairs.")] = 1,
) -> None:
    """Write pairs of the built-in corpus (dates, times, money, numbers in words) to two files."""
    from saccade.data import builtin
    from saccade.files import write_text

    made = list(islice(builtin.pairs(source, target, seed=seed, split=split), pairs))  # type: ignore[arg-type]
    for language, lines in zip((source, target), zip(*made, strict=True), strict=True):
        path = out.with_name(f"{out.name}.{language}")
        write_text(path, "".join(line + "\n" for line in lines))
        typer.echo(f"{path}: {pairs:,} lines")


@app.command()
def export(
    folder: Folder,
    to: Annotated[str, typer.Option(help="ctranslate2, huggingface or onnx.")],
    quantization: Annotated[
        str | None,
        typer.Option(help="For ctranslate2: float32, int8, int16, bfloat16, float16, … Default: float32."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The folder to make. Default: in FOLDER, named after --to.")] = None,
    verify: Annotated[
        str | None, typer.Option(help="Source sentences to verify it with. Default: FOLDER's validation set.")
    ] = None,
) -> None:
    """Hand a model over to another program, verified token for token before it is called good."""
    from saccade.export.run import export as run_export

    run_export(folder, to, out, quantization, verify)


@app.command()
def settings(
    section: Annotated[
        str | None, typer.Argument(help="data, tokenizer, model, training or search. Default: all.")
    ] = None,
    schema: Annotated[bool, typer.Option(help="Print a JSON schema, for editors.")] = False,
) -> None:
    """Print every setting with its default and a sentence on what it does (Markdown)."""
    from saccade.config import Config
    from saccade.reference import reference_page

    typer.echo(json.dumps(Config.model_json_schema(), indent=1) if schema else reference_page(section), nl=schema)


@app.command()
def explain(
    topic: Annotated[
        str | None,
        typer.Argument(help="scaling, positions, masking, heads or bottleneck. Default: say what each is about."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Draw the plot to this .png, .svg or .pdf file too.")] = None,
    to_json: Annotated[
        Path | None, typer.Option("--json", help="Write the numbers to this file; -: print them and nothing else.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Another seed, other random numbers.")] = 1,
    steps: Annotated[
        int | None, typer.Option(help="Train for so many steps. Default: what shows the point in half a minute.", min=1)
    ] = None,
) -> None:
    """Show how attention works by an experiment that is run now: sentences, numbers and a plot."""
    from saccade.explain.show import run_explain

    run_explain(topic, out=out, to_json=to_json, seed=seed, steps=steps)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="The folder to make.")] = Path("runs/demo"),
    minutes: Annotated[float, typer.Option(help="Train for at most so many minutes.")] = 1.5,
) -> None:
    """Train a small translator on built-in data and show what it does."""
    from saccade.demo import run_demo

    run_demo(out, minutes)


def main() -> None:
    """Run the command line; what a user can mend is said without a traceback."""
    try:
        app(standalone_mode=True)
    except SaccadeError as error:
        Console(stderr=True, highlight=False).print(f"[red]error:[/] {escape(str(error))}", soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # `saccade translate … | head`
        sys.stderr.close()
        sys.exit(141)


def _shown(progress: Callable[[int], None], before: int, done: int) -> None:
    progress(before + done)


@contextmanager
def _output(output: str, resume: bool, numbered: bool) -> Iterator[tuple[IO[str], int]]:
    """What to write to, as UTF-8 with \\n whatever the locale says, and how many lines of the source are done."""
    from saccade.files import written_atomically
    from saccade.text.streaming import resumed

    # A pipe or a device is written to; only a file is put in place whole.
    if output == "-" or (Path(output).exists() and not Path(output).is_file()):
        if resume:
            raise SaccadeError(f"--resume needs a file to go on with, not {output}; name one with --output")
        if output == "-":
            yield _utf8(sys.stdout), 0
            return
        with open(output, "w", encoding="utf-8", newline="\n") as file:
            yield file, 0
    elif resume:
        with resumed(_resolved(output), numbered) as going_on:
            yield going_on
    else:
        with written_atomically(_resolved(output)) as path, open(path, "w", encoding="utf-8", newline="\n") as file:
            yield file, 0


def _resolved(path: str) -> Path:
    """The file that a link leads to: it is the one to replace."""
    return Path(path).resolve() if Path(path).is_symlink() else Path(path)


def _utf8(stream: Any) -> IO[str]:
    stream.reconfigure(encoding="utf-8", newline="\n")
    return stream


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


if __name__ == "__main__":
    main()
