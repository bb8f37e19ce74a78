"""Our engines beside CTranslate2 called directly, on a small export."""

import shutil
import sys

import pytest

pytest.importorskip("ctranslate2")

from benchmarks import engines


def test_all_ways_write_and_are_timed(trained, tmp_path, command, monkeypatch, capsys):
    shutil.copytree(trained, tmp_path / "run")
    done = command("export", tmp_path / "run", "--to", "ctranslate2")
    assert done.status == 0, done.err
    (tmp_path / "test.en").write_text("seventeen\nJanuary 5, 2021\n8:15 PM\n")
    line = ["engines", str(tmp_path / "run"), "--input", str(tmp_path / "test.en"), "--sentences", "6"]
    monkeypatch.setattr(sys, "argv", [*line, "--rounds", "1", "--threads", "1", "--beams", "1", "2"])
    engines.main()
    said = capsys.readouterr().out
    assert said.count("saccade, CTranslate2: 100.00% of the sentences as ours") == 3
    assert said.count("CTranslate2 called directly: ") == 3
