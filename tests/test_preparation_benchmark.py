"""Preparing a large corpus, timed on a small one."""

import sys

from benchmarks import preparation


def test_a_corpus_is_written_prepared_and_trained_on_in_a_process_of_its_own(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["preparation", "--pairs", "300", "--steps", "2"])
    preparation.main()
    (row,) = [line for line in capsys.readouterr().out.splitlines() if " 300 " in line]
    assert len([cell for cell in row.strip("│").split("│") if cell.strip()]) == 6
