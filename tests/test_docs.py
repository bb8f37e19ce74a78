"""The words of the project are true: every command shown is run, every page builds, every recipe loads."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
import torch
import yaml

from saccade.api import settings_from
from saccade.attention.scores import SCORES
from saccade.attention.windows import WINDOWS
from saccade.config import ClassifierConfig, Config, ConvConfig, LMConfig, RNNConfig, TransformerConfig
from saccade.models.build import build_model, count_parameters, with_shape
from saccade.reference import reference_page

ROOT = Path(__file__).parent.parent
PAGES = ["README.md", *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").glob("*.md")))]
# Its commands, from a corpus to a translation, are those that are installed; elsewhere a warm Python runs them.
INSTALLED = "docs/index.md"
RECIPES = sorted((ROOT / "recipes" / "multi30k").glob("*.yaml"))
# The rows of docs/history.md; what is in a folder named common is only extended.
HISTORY = sorted(path for path in (ROOT / "recipes" / "history").rglob("*.yaml") if path.parent.name != "common")
BLOCK = re.compile(r"^```(\w+)(?: title=\"(.+?)\")?\n(.*?)^```", re.MULTILINE | re.DOTALL)

# What makes a shown training command short; nothing else of it is changed.
BRIEF = (
    "data.builtin_pairs=120 data.valid_pairs=8 training.max_steps=2 training.validate_every=2 "
    "training.validate_bleu_pairs=2 training.batch_tokens=256 training.threads=1 "
    "search.max_length_factor=1 search.max_length_extra=2"
)
TINY = "model.width=16 model.heads=2 model.feed_forward=16 model.encoder_layers=1 model.decoder_layers=1"


def blocks(page: str, language: str) -> list[str]:
    return [body for kind, _, body in BLOCK.findall((ROOT / page).read_text()) if kind == language]


def brief(command: str) -> str:
    """The command as shown, with fewer pairs and steps."""
    if command.startswith("saccade corpus"):
        # Enough to learn a vocabulary from, and a few to translate.
        pairs = 12 if "--split" in command else 120
        command = re.sub(r" --pairs \d+", "", command) + f" --pairs {pairs}"
    if re.search(r"(^|\| )saccade train(?!-)", command):
        tiny = "" if re.search("family=|wiring=|--config|--from", command) else TINY
        command += f" {BRIEF} {tiny}"
    if command.startswith("saccade distill"):
        command += " search.guard=false"  # a teacher of two steps repeats itself, and what is made of it is dropped
    if command.startswith("saccade compare"):
        # Two rows of each comparison, one seed; speeds are measured by tests/test_compare.py.
        command = re.sub(r"recipes/history/(\S*)\*\.yaml", _two_rows, command)
        command = re.sub(r"--(seeds|jobs) \d+", "", command)
        command += f" {BRIEF} model.width=16 --no-speed"
    if re.match(r"saccade explain (masking|heads|bottleneck)", command):
        command += " --steps 2"
    return command


def _two_rows(match: re.Match[str]) -> str:
    folder = ROOT / "recipes" / "history" / match[1]
    return " ".join(f"recipes/history/{match[1]}{path.name}" for path in sorted(folder.glob("*.yaml"))[:2])


@pytest.fixture(scope="module")
def check_runs(clients):
    """Runs a line as a shell does, in a folder; with `installed`, the very command that is installed."""

    def check(command: str, place: Path, installed: bool = False) -> str:
        scripts = Path(sys.executable).parent
        environment = os.environ | {
            "PATH": ":".join([*([] if installed else [str(clients)]), str(scripts), os.environ["PATH"]]),
            "ROOT": str(ROOT),
            "MULTI30K": str(place / "multi30k"),
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "200",
        }
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command], cwd=place, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    return check


@pytest.fixture(scope="module")
def workplace(tmp_path_factory, check_runs):
    """A folder with what the pages speak of: a demo, the files of the examples, and a small stand-in for Multi30k."""
    place = tmp_path_factory.mktemp("docs")
    check_runs(f"saccade corpus en de --out dates --pairs 120 && saccade train --out runs/demo {BRIEF} {TINY}", place)
    other_way = "data.source=de data.target=en"
    for name, more in (
        ("second", "model.family=rnn model.width=16 model.embedding=16"),
        ("back", f"{TINY} {other_way}"),
    ):
        check_runs(f"saccade train --out runs/{name} {BRIEF} {more}", place)
    check_runs("mkdir -p multi30k && cp -r $ROOT/recipes . && cp dates.en your.en && cp dates.de your.de", place)
    for name in ("train", "val", "test_2016_flickr"):
        for form in ("", ".lc.norm.tok"):
            for language in ("en", "de"):
                lines = 120 if name == "train" else 12
                check_runs(f"head -{lines} dates.{language} | gzip > multi30k/{name}{form}.{language}.gz", place)
    check_runs("mkdir -p long gold && echo 0-0 1-1 > gold/links", place)
    for language in ("en", "de"):
        check_runs(f"head -1 dates.{language} > gold/sentences.{language}", place)
        for name in ("train", "dev"):
            check_runs(f"gzip -c dates.{language} > long/{name}.{language}.gz", place)
    return place


@pytest.mark.parametrize("page", PAGES)
def test_every_command_and_python_block_shown_runs(page, workplace, check_runs):
    """In the order of the page: a reader who follows it finds what the blocks above have made."""
    for kind, title, body in BLOCK.findall((ROOT / page).read_text()):
        if kind == "yaml" and title:
            (workplace / title).write_text(body)
        if kind == "python":
            short = body.replace('{"max_steps": 200}', '{"max_steps": 2, "threads": 1, "validate_bleu_pairs": 2}')
            short = short.replace('out="runs/en-de"', 'out="runs/python", restart=True')
            check_runs(f"python - <<'EOF'\n{short}\nEOF", workplace)
        if kind != "bash":
            continue
        for command in re.sub(r"\\\n\s*", "", body).splitlines():
            command = command.partition("  #")[0].strip()
            if not command:
                continue
            if command.startswith("make "):
                assert f"\n{command.split()[1]}:" in (ROOT / "Makefile").read_text(), f"{command}: no such target"
                continue
            if command.startswith(("pip ", "python -m benchmarks", "git ")):
                continue
            for out in re.findall(r"--out (runs/\S+)", command):
                if "--restart" not in command:
                    shutil.rmtree(workplace / out, ignore_errors=True)
            check_runs(brief(command), workplace, installed=page == INSTALLED)


def test_the_service_and_the_container_start_what_there_is(command):
    (service,), (container,) = blocks("docs/serving.md", "ini"), blocks("docs/serving.md", "dockerfile")
    (started,) = re.findall(r"^ExecStart=(.+)$", service, re.MULTILINE)
    (said,) = re.findall(r"^CMD (.+)$", container, re.MULTILINE)
    known = command("serve", "--help").out
    for words in (started.split(), json.loads(said)):
        assert Path(words[0]).name == "saccade"
        assert words[1] == "serve"
        for option in (word for word in words if word.startswith("--")):
            assert f"{option} " in known, option
    copied = re.findall(r"^COPY (.+) \S+$", container, re.MULTILINE)
    for name in " ".join(copied).split():
        assert (ROOT / name).exists() or name.startswith("runs/"), name


def test_every_benchmark_that_is_shown_exists():
    shown = {name for page in PAGES for name in re.findall(r"python -m (benchmarks\.\w+)", (ROOT / page).read_text())}
    assert shown
    for name in shown:
        assert (ROOT / f"{name.replace('.', '/')}.py").exists()


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_loads_and_says_how_it_is_run(recipe):
    text = recipe.read_text()
    Config.load(recipe)
    header = "".join(line for line in text.splitlines(keepends=True) if line.startswith("#"))
    for promised in ("saccade train", "saccade evaluate", "hardware", "time", "BLEU", "nrefs:1"):
        assert promised in header, f"{recipe.name}: the header does not give {promised}"


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_every_recipes_own_commands_run(recipe, workplace, check_runs):
    header = [line[1:].strip() for line in recipe.read_text().splitlines() if line.startswith("#")]
    commands = re.sub(r"\\\n\s*", "", "\n".join(header)).splitlines()
    for command in commands:
        if command.startswith("saccade"):
            smaller = f" {TINY}" if "transformer" in recipe.stem else " model.width=16 model.embedding=16"
            command = brief(command) + smaller if command.startswith("saccade train") else command
            check_runs(command, workplace)


@pytest.mark.parametrize("recipe", HISTORY, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_row_of_the_history_builds_and_names_what_it_is(recipe):
    assert re.match(r"# \S.*\.\n", recipe.read_text())
    config = Config.load(recipe)
    shaped = config.model_copy(update={"model": with_shape(config.model, joint=True)})
    with torch.device("meta"):
        assert count_parameters(build_model(shaped, 8000, 8000)) > 1_000_000


def test_every_mechanism_has_a_row():
    """Each value of each setting that names a mechanism is in some recipe of the history."""
    models = [Config.load(recipe).model for recipe in HISTORY]
    used = {(model.family, name, value) for model in models for name, value in model.model_dump().items()}
    wanted = {("rnn", "score", name) for name in SCORES} | {("rnn", "window", name) for name in WINDOWS}
    for section in (TransformerConfig, RNNConfig, ConvConfig, LMConfig, ClassifierConfig):
        family = get_args(section.model_fields["family"].annotation)[0]
        for name in ("wiring", "fusion", "positions", "merge_positions", "norm", "normalisation", "activation"):
            if name in section.model_fields:
                wanted |= {(family, name, value) for value in get_args(section.model_fields[name].annotation)}
    wanted |= {("transformer", "residual", False), ("transformer", "key_heads", 1), ("transformer", "tied", "none")}
    wanted |= {("rnn", "input_feeding", True), ("rnn", "input_feeding", False), ("rnn", "reverse_source", True)}
    assert wanted - used == set()
    assert "classifier" in {model.family for model in models}


def test_the_settings_page_is_what_the_settings_say():
    page = (ROOT / "docs" / "settings.md").read_text()
    assert page == reference_page(), "docs/settings.md is out of date: saccade settings > docs/settings.md"


def test_every_law_on_the_invariants_page_is_held_by_a_test_that_exists():
    for file, name in re.findall(r"`(test_\w+\.py)::(test_\w+)`", (ROOT / "docs" / "invariants.md").read_text()):
        assert f"def {name}(" in (ROOT / "tests" / file).read_text(), f"{file} has no {name}"


def test_the_documentation_builds_without_warnings(tmp_path):
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "DISABLE_MKDOCS_2_WARNING": "true"}
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "settings" / "index.html").exists()


def test_the_readme_opens_with_its_two_commands():
    first = blocks("README.md", "bash")[0]
    assert "make demo" in first
    assert "make test" in first


def test_a_recipe_is_short():
    for recipe in RECIPES:
        settings = yaml.safe_load(recipe.read_text())
        assert sum(len(section) for section in settings.values()) <= 16
        assert settings_from([], recipe) == Config.load(recipe)
