"""`saccade serve` as a process: it says where it is, drains when it is told to stop, and ends well."""

import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import httpx
import pytest

from saccade import demo
from saccade.serving.run import demo_folder

SLOW = {"min_length": 512, "max_length_extra": 256, "max_length": 4096, "guard": False, "split": "never"}


@pytest.fixture
def process(trained, request):
    """The command, and the address that it says."""
    line = [sys.executable, "-m", "saccade", "serve", str(trained), "--port", "0", "--no-open", "--engine", "torch"]
    line += getattr(request, "param", [])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(line, stderr=subprocess.PIPE, env=environment, text=True) as started:
        lines: list[str] = []
        while not any("http://" in line for line in lines):
            assert select.select([started.stderr], [], [], 60)[0], "it says nothing"
            lines.append(started.stderr.readline())
            assert lines[-1], "it ended"
        url = re.search(r"http://[\d.:]+", lines[-1])[0]
        reader = threading.Thread(target=lambda: lines.extend(started.stderr), daemon=True)
        reader.start()
        yield started, url, lines
        started.kill()


def test_a_server_that_is_told_to_stop_finishes_what_it_has_begun_and_refuses_what_is_new(process, trained):
    started, url, lines = process
    assert re.search(rf"serving {trained.name} at http://127.0.0.1:\d+/", "".join(lines))
    assert httpx.get(f"{url}/health", timeout=30).json()["ready"] is True
    httpx.post(f"{url}/v1/translate", json={"text": "Monday"}, timeout=30)
    answers = []
    body = {"text": ["Monday, May 3 " + "one " * 60] * 8, "search": SLOW}

    def ask():
        answers.append(httpx.post(f"{url}/v1/translate", json=body, timeout=60))

    thread = threading.Thread(target=ask)
    thread.start()
    while "saccade_requests_at_work 1" not in httpx.get(f"{url}/metrics").text:
        time.sleep(0.01)
    started.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + 10
    while httpx.get(f"{url}/health").json()["ready"] and time.monotonic() < deadline:
        time.sleep(0.01)
    refused = httpx.post(f"{url}/v1/translate", json={"text": "Monday"})
    assert refused.status_code == 503
    assert refused.headers["Retry-After"]
    assert "about to stop" in refused.json()["error"]
    thread.join()
    assert answers[0].status_code == 200
    assert len(answers[0].json()["results"]) == 8
    assert started.wait(20) == 0


def test_a_model_s_process_ends_with_a_server_that_was_killed_though_it_is_busy():
    ends = "from saccade.serving.child import end_with_the_server as end; end()"
    busy = ends + "; print('busy', flush=True)\nwhile True: ..."
    server = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {busy!r}])"
    with subprocess.Popen([sys.executable, "-c", server], stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout.readline() == "busy\n"
        started.kill()
        # Nothing more comes once nobody is left who could write.
        assert select.select([started.stdout], [], [], 60)[0], "it goes on without its server"
        assert started.stdout.read() == ""


def test_the_log_is_json_without_the_texts_of_users(process):
    started, url, lines = process
    httpx.post(f"{url}/v1/translate", json={"text": "A secret Monday"}, timeout=30)
    started.send_signal(signal.SIGINT)
    assert started.wait(20) == 0
    rows = [json.loads(line) for line in lines if line.startswith("{")]
    assert {"request", "model loaded", "draining"} <= {row["event"] for row in rows}
    request = next(row for row in rows if row["event"] == "request")
    assert request["path"] == "/v1/translate"
    assert request["status"] == 200
    assert "secret" not in "".join(lines)
    after = next(number for number, line in enumerate(lines) if "http://" in line) + 1
    assert len(rows) == len(lines) - after, "nothing else is said, neither then nor at the end"


@pytest.mark.parametrize("process", [["--processes", "0"], ["--processes", "1"]], indirect=True)
def test_a_server_that_is_told_twice_ends_at_once_and_well(process):
    started, url, lines = process
    httpx.post(f"{url}/v1/translate", json={"text": "Monday"}, timeout=30)
    ended = []

    def ask():
        body = {"text": ["Monday, May 3 " + "one " * 60] * 200, "search": SLOW}
        with pytest.raises(httpx.TransportError):
            httpx.post(f"{url}/v1/translate", json=body, timeout=60)
        ended.append(True)

    thread = threading.Thread(target=ask)
    thread.start()
    while "saccade_requests_at_work 1" not in httpx.get(f"{url}/metrics").text:
        time.sleep(0.01)
    said = len(lines)
    started.send_signal(signal.SIGINT)
    while not any("draining" in line for line in lines[said:]):
        time.sleep(0.01)
    started.send_signal(signal.SIGINT)
    assert started.wait(20) == 0
    thread.join()
    assert ended
    assert [line for line in lines[said:] if not line.startswith("{") or '"level": "error"' in line] == []


def test_a_port_that_is_taken_is_said_with_the_remedy(command, trained):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = command("serve", trained, "--port", taken.getsockname()[1], "--no-open")
    assert done.status == 2
    assert "choose another port, or 0 for any that is free" in done.err


def test_what_is_no_folder_is_refused_before_anything_listens(command, tmp_path):
    done = command("serve", tmp_path / "none", "--no-open")
    assert done.status == 2
    assert "there is no such folder" in done.err


def test_keys_that_are_not_there_are_said_before_the_server_says_where_it_is(command, trained, tmp_path):
    done = command("serve", trained, "--port", 0, "--no-open", "--keys", tmp_path / "none.json")
    assert done.status == 2
    assert "there is no such file of keys" in done.err
    assert "serving" not in done.err


def test_the_demo_is_trained_where_there_is_none_or_only_a_part_of_it(trained, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(demo, "TRAINING", demo.TRAINING | {"max_steps": 4, "validate_every": 2})
    folder = tmp_path / "demo"
    shutil.copytree(trained, folder)
    (folder / "record.json").unlink()  # as a run that was broken off leaves it
    before = (folder / "model.safetensors").read_bytes()
    assert demo_folder(folder) == folder
    assert "no finished model yet; training the demo" in capsys.readouterr().err
    after = (folder / "model.safetensors").read_bytes()
    assert after != before
    assert demo_folder(folder) == folder
    assert "training" not in capsys.readouterr().err
    assert (folder / "model.safetensors").read_bytes() == after


def test_a_demo_that_was_stopped_is_gone_on_with_as_it_said(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(demo, "TRAINING", demo.TRAINING | {"max_steps": 4, "validate_every": 2})
    demo_folder(tmp_path / "demo")
    (tmp_path / "demo" / "record.json").unlink()  # as if it had been stopped at step 4 of 6
    monkeypatch.setattr(demo, "TRAINING", demo.TRAINING | {"max_steps": 6})
    capsys.readouterr()
    demo_folder(tmp_path / "demo")
    assert "resuming: step 4 of 6" in capsys.readouterr().err


def test_a_run_that_is_watched_before_it_has_a_model_is_named(tmp_path):
    line = [sys.executable, "-m", "saccade", "serve", "--watch", str(tmp_path / "x"), "--port", "0", "--no-open"]
    with subprocess.Popen(line, stderr=subprocess.PIPE, env=os.environ | {"COLUMNS": "500"}, text=True) as started:
        said = started.stderr.readline()
        started.terminate()
    assert said.startswith(f"watching {tmp_path / 'x'}, where there is nothing yet, at http://127.0.0.1:")


def test_without_what_it_needs_it_names_the_extra(trained):
    script = "import sys; sys.modules['uvicorn'] = None; from saccade.__main__ import main; main()"
    line = [sys.executable, "-c", script, "serve", str(trained)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (2, "error: saccade serve needs uvicorn: pip install 'saccade[serve]'\n")
