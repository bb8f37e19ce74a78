"""All figures that want a GPU, by one command: what is measured stays, what is not is named and gone on with."""

import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import gpu
from benchmarks.gpu import Stage, measure, rounds
from saccade.display import Display

ROOT = Path(__file__).parent.parent
SAVES = (
    "import signal, sys, time, pathlib;"
    "signal.signal(signal.SIGTERM, lambda *_: (pathlib.Path(sys.argv[1]).write_text('saved'), sys.exit(3)));"
    "print('begun', flush=True); time.sleep(60)"
)


def test_what_is_measured_is_not_measured_again_and_what_fails_takes_nothing_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    counted = ["-c", f"open({str(tmp_path / 'runs')!r}, 'a').write('x'); print('42 tokens/s')"]
    stages = [
        [Stage("good", counted), Stage("bad", ["-c", "raise SystemExit('no such GPU')"])],
        [Stage("next", ["-V"])],
    ]
    for _ in range(2):
        assert measure(stages, tmp_path / "out", time.monotonic() + 60, Display()) == ["bad"]
    assert (tmp_path / "runs").read_text() == "x"
    assert "42 tokens/s" in (tmp_path / "out" / "good.log").read_text()
    assert "no such GPU" in (tmp_path / "out" / "bad.log").read_text()
    assert "bad: failed with status 1" in capsys.readouterr().err


def test_when_the_minutes_are_over_what_runs_may_save_and_the_rest_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved, log = tmp_path / "saved", tmp_path / "out" / "long.log"

    def begun() -> float:
        return float(log.exists() and "begun" in log.read_text())  # the minutes are over as soon as it runs

    monkeypatch.setattr(gpu, "time", SimpleNamespace(sleep=time.sleep, monotonic=begun))
    stages = [[Stage("long", ["-c", SAVES, str(saved)])], [Stage("later", ["-V"])]]
    assert measure(stages, tmp_path / "out", 0.5, Display()) == ["long", "later"]
    assert saved.read_text() == "saved"
    assert not (tmp_path / "out" / "later.log").exists()


def test_every_stage_is_a_command_that_exists() -> None:
    stages = [stage for each in rounds(Path("multi30k"), Path("europarl"), Path("out"), "cuda") for stage in each]
    assert len({stage.name for stage in stages}) == len(stages) > 5
    helps: dict[str, str] = {}
    for stage in stages:
        words = list(stage.command)
        program = " ".join(words[:3] if words[1] == "saccade" else words[:2])
        if program not in helps:
            line = [sys.executable, *program.split(), "--help"]
            helps[program] = subprocess.run(line, capture_output=True, text=True, check=True, cwd=ROOT).stdout
        for option in (word for word in words if word.startswith("--")):
            assert re.search(rf"{option}\b", helps[program]), f"{stage.name}: {option}"


def test_an_unknown_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu", "--multi30k", "a", "--europarl", "b", "--only", "decodign"])
    with pytest.raises(SystemExit, match="--only decodign: not one of decoding, "):
        gpu.main()
