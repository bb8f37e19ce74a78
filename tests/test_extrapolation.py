"""The benchmark of lengths beyond training: what it joins, and a whole run of it."""

import json
import sys
from itertools import islice

import pytest

from benchmarks import extrapolation
from saccade.data import builtin


def test_consecutive_pairs_are_joined_and_a_rest_is_left_out():
    pairs = [(f"s{i}", f"t{i}") for i in range(5)]
    assert extrapolation.join(pairs, 1) == pairs
    assert extrapolation.join(pairs, 2) == [("s0 s1", "t0 t1"), ("s2 s3", "t2 t3")]
    assert extrapolation.join(pairs, 5) == [("s0 s1 s2 s3 s4", "t0 t1 t2 t3 t4")]


def test_a_length_that_a_scheme_cannot_hold_is_shown_as_refused(tmp_path, monkeypatch, capsys):
    for split, count in (("train", 150), ("test", 24)):
        made = list(islice(builtin.pairs("en", "de", seed=1, split=split), count))
        for side, language in enumerate(("en", "de")):
            (tmp_path / f"{split}.{language}").write_text("".join(f"{pair[side]}\n" for pair in made))
    files = [f"{tmp_path}/{name}" for name in ("train.en", "train.de", "test.en", "test.de")]
    small = ["model.width=16", "model.feed_forward=16", "model.encoder_layers=1", "model.decoder_layers=1"]
    out = tmp_path / "out"
    command = ["extrapolation", "--train", *files[:2], "--dev", *files[2:], "--out", str(out), "--steps", "2"]
    command += ["--device", "cpu", "--schemes", "learned,alibi", "--joined", "1,2,12", "--max-positions", "60"]
    command += ["--max-words", "12", *small, "training.threads=1", "data.valid_pairs=10"]
    monkeypatch.setattr(sys, "argv", command)
    extrapolation.main()
    learned, alibi = json.loads((out / "extrapolation.json").read_text())["curves"]
    assert [point["joined"] for point in alibi["points"]] == [1, 2, 12]
    assert learned["points"][2]["loss"] is None
    assert "more than the 59 taken" in learned["points"][2]["refused"]
    for point in (*alibi["points"], *learned["points"][:2]):
        assert 2 < point["loss"] < 9
    # The same text, only longer: what is left out is less than one join.
    assert alibi["points"][1]["source_pieces"] == pytest.approx(2 * alibi["points"][0]["source_pieces"], rel=0.2)
    table = capsys.readouterr().out
    assert "| `learned` |" in table
    assert table.count("refused") == 1
    assert (out / "extrapolation.svg").read_text().startswith("<?xml")
    assert (out / "extrapolation.png").stat().st_size > 1000
