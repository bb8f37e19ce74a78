"""The same minutes for Saccade and MarianMT, on a small stand-in for the corpus."""

import gzip
import json
import sys
from itertools import islice

import pytest

from benchmarks import europarl
from saccade.data import builtin
from saccade.errors import SaccadeError

SMALL = ["model.width=16", "model.heads=2", "model.feed_forward=16", "model.encoder_layers=1", "model.decoder_layers=1"]
SMALL += ["training.batch_tokens=512", "training.validate_every=10", "training.validate_bleu_pairs=2"]
SMALL += ["tokenizer.vocabulary=400", "search.beam=2"]


def test_both_train_for_the_same_time_and_are_scored_alike(tmp_path, monkeypatch, capsys):
    for name, count in (("train", 300), ("dev", 12)):
        made = list(islice(builtin.pairs("de", "en", seed=count), count))
        for side, language in enumerate(("de", "en")):
            with gzip.open(tmp_path / f"{name}.{language}.gz", "wt", encoding="utf-8") as file:
                file.writelines(pair[side] + "\n" for pair in made)
    line = ["europarl", *SMALL, "--data", str(tmp_path), "--out", str(tmp_path / "out"), "--minutes", "0.03"]
    monkeypatch.setattr(sys, "argv", [*line, "--warmup", "10", "--device", "cpu"])
    europarl.main()
    said = capsys.readouterr().out
    scores = json.loads(said.splitlines()[0])
    assert list(scores) == ["Saccade", "transformers MarianMT"]
    for found in scores.values():
        assert [score["metric"] for score in found] == ["BLEU", "chrF2"]
        assert "tok:13a" in found[0]["signature"]
    assert "0.03 minutes each on cpu" in said
    assert int(said.split("MarianMT took ")[1].split()[0].replace(",", "")) > 1


def test_a_folder_without_the_corpus_is_refused_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["europarl", "--data", str(tmp_path)])
    with pytest.raises(SaccadeError, match=r"train\.de\.gz: there is no such file; --data is"):
        europarl.main()
