"""What a warm Python runs for a shell is as what the shell would have started itself."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("saccade explain | head -2; cd / && pwd", id="a command in a pipe"),
        pytest.param("saccade no-such-command; echo $?", id="a mistake's status and words"),
        pytest.param("echo 'import sys; print(sys.argv); sys.exit(3)' | python - a 'b c'; echo $?", id="a program"),
        pytest.param("echo 'import sys; sys.exit(\"no\")' | python -; echo $?", id="a program's last words"),
        pytest.param("echo 'import os; print(os.getcwd(), os.environ[\"X\"])' | (cd /; X=7 python -)", id="folder"),
        pytest.param("(echo 'import os; os.kill(os.getpid(), 9)' | python -) 2> /dev/null; echo $?", id="killed"),
        pytest.param("python -c 'print(1)'; python -m calendar 1992 8 | tail -4", id="modules and the rest"),
    ],
)
def test_a_warm_python_does_what_python_does(line: str, clients: Path) -> None:
    outcomes = []
    for folder in (clients, Path(sys.executable).parent):
        environment = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}", "COLUMNS": "100", "TERM": "dumb"}
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, env=environment)
        outcomes.append((done.returncode, done.stdout, done.stderr))
    assert outcomes[0] == outcomes[1]
