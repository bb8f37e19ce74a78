"""Tuning on Multi30k's validation set, and its test set once: with a small stand-in for the corpus."""

import gzip
import sys
from itertools import islice
from pathlib import Path

import pytest

from benchmarks import multi30k
from saccade.config import Config
from saccade.data import builtin
from saccade.errors import SaccadeError

ROOT = Path(__file__).parent.parent
SMALL = ["model.width=16", "model.heads=2", "model.feed_forward=16", "model.encoder_layers=1", "model.decoder_layers=1"]
SMALL += ["training.max_steps=3", "training.bidirectional_steps=1", "training.batch_tokens=256", "search.beam=1"]
SMALL += ["training.validate_every=3", "training.validate_bleu_pairs=2", "tokenizer.vocabulary=400"]


def write(place: Path, name: str, pairs: int) -> None:
    made = list(islice(builtin.pairs("en", "de", seed=len(name)), pairs))
    for side, language in enumerate(("en", "de")):
        for form in ("", ".lc.norm.tok"):
            with gzip.open(place / f"{name}{form}.{language}.gz", "wt", encoding="utf-8") as file:
                file.writelines(pair[side] + "\n" for pair in made)


def test_variants_are_tuned_without_a_test_set_and_the_chosen_one_is_tested_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def tune(*arguments: str) -> str:
        line = [
            "multi30k",
            "en",
            "de",
            *SMALL,
            "--data",
            str(tmp_path),
            "--device",
            "cpu",
            "--out",
            str(tmp_path / "out"),
        ]
        monkeypatch.setattr(sys, "argv", [*line, *arguments])
        multi30k.main()
        return capsys.readouterr().out

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    write(tmp_path, "train", 60)
    write(tmp_path, "val", 12)
    table = tune("--variant", "r-drop", "training.r_drop=5 training.simcut=0", "--jobs", "2")
    assert "| multi30k-en-de-best |" in table
    assert "| r-drop |" in table
    assert "Validation set: val.lc.norm.tok.en.gz" in table
    assert "best on validation: " in table
    trained = Config.load(tmp_path / "out" / "tokenised" / "r-drop" / "seed-1" / "config.yaml").training
    assert (trained.r_drop, trained.simcut, trained.ema) == (5.0, 0.0, 0.999)
    with pytest.raises(SaccadeError, match=r"test_2016_flickr.*no such file"):
        tune("--test", "r-drop")  # there is no test set yet, and tuning did not miss it
    with pytest.raises(SaccadeError, match="--test other: not one of multi30k-en-de-best, r-drop"):
        tune("--test", "other")
    write(tmp_path, "test_2016_flickr", 10)
    said = tune("--test", "r-drop")
    assert "tok:none" in said
    assert "tok:13a" in said
    (tmp_path / "test_2016_flickr.en.gz").unlink()
    assert tune("--test", "r-drop") == said, "what was tested is not tested again"


@pytest.mark.parametrize("pair", ["en-de", "en-fr"])
def test_the_recipes_load_and_say_how_they_are_run(pair: str) -> None:
    recipe = ROOT / "recipes" / f"multi30k-{pair}-best.yaml"
    training = Config.load(recipe).training
    assert training.r_drop is not None
    assert training.r_drop > 0
    assert training.ema > 0
    for promised in ("saccade train", "saccade evaluate", "benchmarks.multi30k"):
        assert promised in recipe.read_text()
