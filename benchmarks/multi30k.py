"""Multi30k: which settings are best on the validation set and, once, at the end, what the best gives on the test set.

    python -m benchmarks.multi30k en de --data $MULTI30K --seeds 3 --jobs 6

trains the recipe of the pair (recipes/multi30k-en-de-best.yaml, or --recipe) and variants of it, each with several
seeds, --jobs at a time on one device, and prints a table of validation scores. A variant is a name and the settings in
which it differs:

    --variant wider "model.width=384 training.learning_rate=1e-3" --variant no-ema training.ema=0

Without any, those of VARIANTS are trained. Stopped, the same command goes on. Variants can be added later: those given
before are remembered in --out, and what is trained is not trained again. When one is chosen,

    python -m benchmarks.multi30k en de --data $MULTI30K --seeds 3 --jobs 6 --test NAME

scores it on test_2016_flickr, by two protocols, each with its signature: trained and scored on the tokenised,
lower-cased files (`*.lc.norm.tok.*`, as published), and trained and scored on the raw files (cased, detokenised).
Scores of a test are kept in --out and not made a second time.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

import yaml

from saccade.comparing.plan import Plan, Row, rows_of
from saccade.comparing.run import compare
from saccade.comparing.table import spread, to_markdown
from saccade.config import read_settings
from saccade.data.lines import read_lines
from saccade.display import Display
from saccade.errors import SaccadeError
from saccade.evaluation.metrics import score_corpus
from saccade.files import write_text
from saccade.folder import load

RECIPES = Path(__file__).parent.parent / "recipes"
TEST = "test_2016_flickr"
# The name of a protocol, how its files are called, and sacrebleu's tokenizer for it.
PROTOCOLS = {"tokenised": (".lc.norm.tok", "none"), "cased": ("", "13a")}
VARIANTS = {
    "simcut": "training.bidirectional_steps=0 training.max_steps=6000",
    "r-drop": "training.bidirectional_steps=0 training.max_steps=6000 training.simcut=0 training.r_drop=5",
    "bi-r-drop": "training.simcut=0 training.r_drop=5",
    "both": "training.bidirectional_steps=0 training.max_steps=6000 training.simcut=1.5 training.r_drop=2.5",
    "no-ema": "training.ema=0",
    "plain": "training.bidirectional_steps=0 training.max_steps=6000 training.simcut=0 training.ema=0",
}


def files(data: Path, name: str, pair: Sequence[str], protocol: str) -> tuple[str, ...]:
    """Source and target of a part of the corpus."""
    form, _ = PROTOCOLS[protocol]
    found = tuple(str(data / f"{name}{form}.{language}.gz") for language in pair)
    for path in found:
        if not Path(path).exists():
            raise SaccadeError(f"{path}: there is no such file; --data is the folder that holds Multi30k")
    return found


def variant_rows(recipe: Path, variants: dict[str, str], out: Path) -> list[Row]:
    """The recipe and its variants, each a recipe of its own in `out`, those of earlier calls too."""
    for name, settings in variants.items():
        path = out / "variants" / f"{name}.yaml"
        text = yaml.safe_dump(
            {"extends": str(recipe.resolve())} | read_settings(None, settings.split()), sort_keys=False
        )
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            write_text(path, text)
    return rows_of([recipe, *sorted((out / "variants").glob("*.yaml"))])


def plan_for(arguments: argparse.Namespace, protocol: str) -> Plan:
    """Train on the training pairs, score on the validation pairs; nothing here knows of a test set."""
    pair, data = (arguments.source, arguments.target), arguments.data
    return Plan(
        out=str(arguments.out / protocol),
        data=files(data, "train", pair, protocol),
        valid=files(data, "val", pair, protocol),
        overrides=("training.tensorboard=false", *arguments.settings),
        seeds=tuple(range(1, arguments.seeds + 1)),
        device=arguments.device,
    )


def on_test(row: Row, arguments: argparse.Namespace, display: Display) -> None:
    """Score the seeds of the chosen row on the test set, by each protocol."""
    for protocol in arguments.protocol:
        _, tokenize = PROTOCOLS[protocol]
        plan = plan_for(arguments, protocol)
        path = arguments.out / f"test-{row.name}-{protocol}.json"
        if path.exists():
            found = json.loads(path.read_text(encoding="utf-8"))
        else:
            lines = compare([row], plan, jobs=arguments.jobs, quality=None, speed=False, display=display, figures=False)
            if lines[0].failed:
                raise SaccadeError(f"{row.name}, {protocol}: {lines[0].failed}")
            pair = (arguments.source, arguments.target)
            sources, references = (list(read_lines(file)) for file in files(arguments.data, TEST, pair, protocol))
            found = {"validation": mean(lines[0].bleu)}
            for seed in plan.seeds:
                with display.task(f"{TEST}, {protocol}, seed {seed}", len(sources)) as progress:
                    translator = load(row.folder(plan, seed), arguments.device)
                    texts = [translation.text for translation in translator.stream(sources, progress)]
                scores = score_corpus(texts, references, metrics=("bleu", "chrf"), tokenize=tokenize)
                found[str(seed)] = [score.to_dict() for score in scores]
            write_text(path, json.dumps(found, indent=1) + "\n")
        seeds = [scores for name, scores in found.items() if name != "validation"]
        print(f"{row.name}, {TEST}, {protocol}, {len(seeds)} seeds (validation BLEU {found['validation']:.2f}):")
        for place in range(2):
            values = [scores[place]["value"] for scores in seeds]
            each = ", ".join(f"{value:.2f}" for value in values)
            print(f"  {seeds[0][place]['metric']} {spread(values)} ({each}) {seeds[0][place]['signature']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", choices=["en", "de", "fr"])
    parser.add_argument("target", choices=["en", "de", "fr"])
    parser.add_argument("settings", nargs="*", metavar="SECTION.KEY=VALUE", help="settings for every row")
    parser.add_argument("--data", type=Path, required=True, help="the folder that holds Multi30k")
    parser.add_argument("--recipe", type=Path, help="what the variants are variants of")
    parser.add_argument("--variant", nargs=2, action="append", metavar=("NAME", "SETTINGS"), default=[])
    parser.add_argument("--out", type=Path, help="where models and tables go")
    parser.add_argument("--seeds", type=int, default=1, help="seeds 1, 2, … of each")
    parser.add_argument("--jobs", type=int, default=1, help="trained at the same time")
    parser.add_argument("--device", help="cpu, cuda, cuda:1; default: the best there is")
    parser.add_argument("--test", metavar="NAME", help="score this one on the test set: once, at the end")
    parser.add_argument(
        "--protocol", nargs="+", choices=PROTOCOLS, default=list(PROTOCOLS), help="of --test; default: both"
    )
    arguments = parser.parse_intermixed_args()
    name = f"multi30k-{arguments.source}-{arguments.target}"
    arguments.recipe = arguments.recipe or RECIPES / f"{name}-best.yaml"
    arguments.out = arguments.out or Path("runs") / name
    display = Display()
    given = dict(arguments.variant) or ({} if arguments.test or (arguments.out / "variants").exists() else VARIANTS)
    rows = variant_rows(arguments.recipe, given, arguments.out)
    if arguments.test is not None:
        chosen = [row for row in rows if row.name == arguments.test]
        if not chosen:
            raise SaccadeError(f"--test {arguments.test}: not one of {', '.join(row.name for row in rows)}")
        on_test(chosen[0], arguments, display)
        return
    plan = plan_for(arguments, "tokenised")
    lines = compare(rows, plan, jobs=arguments.jobs, quality=None, speed=False, display=display, figures=False)
    print(to_markdown(lines, plan), end="")
    if scored := [line for line in lines if line.bleu]:
        print(f"\nbest on validation: {max(scored, key=lambda line: mean(line.bleu)).name}")


if __name__ == "__main__":
    try:
        main()
    except SaccadeError as error:
        raise SystemExit(f"error: {error}") from None
    except KeyboardInterrupt:
        raise SystemExit("stopped; the same command goes on") from None
