"""A model in a process of its own answers as one in the server's does, and takes nobody with it when it fails."""

import asyncio
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys

import httpx
import psutil
import pytest
from served import serving, wait_until

import saccade
from saccade.errors import SaccadeError
from saccade.serving import remote, replicas
from saccade.serving.keeping import KEEPING, TAKEN
from saccade.serving.problems import Busy, TooLarge, TooMany
from saccade.serving.schemas import Part
from saccade.serving.wire import Frame, Wire, error_of, problem_of

SLOW = {"search": {"min_length": 512, "max_length_extra": 256, "max_length": 4096, "guard": False, "split": "never"}}
LONG = "Monday, May 3, " + "one " * 100


@pytest.fixture(scope="module")
def served(trained):
    with serving(trained, processes=1, cache=0) as one:
        one.texts("Monday")
        yield one


def child_of(served) -> psutil.Process:
    return psutil.Process(next(iter(served.server.pool.entries.values())).loaded.model.models[0].process.pid)


def test_answers_are_those_of_the_model_itself(served, trained):
    texts = ["Monday, May 3, 2021", "", "seventeen {x}", "One. Two. " * 80]
    assert served.texts(texts) == [t.text for t in saccade.load(trained, engine="torch").translate(texts)]
    assert child_of(served).pid != os.getpid()


def alike(one, other):
    """Equal but for the last digits of numbers, which depend on what was at work beside them."""
    if isinstance(one, float) or isinstance(other, float):
        return one == pytest.approx(other, abs=1e-3)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(alike, one, other))
    return one == other


def test_everything_that_can_be_asked_is_asked_of_the_other_process(served, trained):
    with serving(trained, cache=0) as here:
        for path, body in (
            ("/v1/translate", {"text": "May 3", "n_best": 2, "alignments": True, "tokens": True}),
            (
                "/v1/translate",
                {"text": ["May 3", "May 4"], "prefix": ["5", "6"], "must": ["zwei"]},
            ),
            ("/v1/alternatives", {"text": "May 3", "prefix": ""}),
            ("/v1/look", {"text": "May 3", "layers": [1]}),
        ):
            there, near = (httpx.post(f"{url}{path}", json=body, timeout=30).json() for url in (served.url, here.url))
            for answer in (there, near):
                answer.pop("seconds", None)
            assert alike(there, near), f"{path}: {json.dumps(there)[:2000]} and {json.dumps(near)[:2000]}"


def test_what_the_model_refuses_is_refused_in_the_same_words(served):
    answer = served.translate("Monday", search={"beam": 2, "n_best": 3})
    assert answer.status_code == 400
    assert "search.n_best=3 is more than search.beam=2" in answer.json()["error"]
    assert served.translate("x " * 500, search={"split": "never", "max_length": 1}).status_code in (200, 400)
    assert served.texts("Monday")


def test_a_stream_is_written_as_it_comes_and_stops_when_nobody_reads(served):
    with served.client() as client:
        with client.stream("POST", "/v1/translate", json={"text": LONG, "stream": True} | SLOW) as response:
            lines = response.iter_lines()
            assert next(lines) == "event: part"
            assert served.rows > 0
        wait_until(lambda: served.server.requests == 0)
    wait_until(lambda: served.rows == 0)
    assert served.metric("saccade_rows") == 0


def test_the_time_limit_holds_there_too(trained):
    with serving(trained, processes=1, time_limit=0.5) as served:
        served.warm()
        answer = served.translate([LONG + str(i) for i in range(64)], **SLOW)  # seconds, on any machine
        assert answer.status_code == 504
        assert "not done in 0.5 seconds, and stopped" in answer.json()["error"]
        wait_until(lambda: served.rows == 0)
        assert served.texts("Monday")


def test_a_process_that_is_killed_is_started_anew_and_what_it_had_is_refused(served):
    before = child_of(served)
    answers = []

    async def ask():
        async with httpx.AsyncClient(timeout=60) as client:
            asked = [client.post(f"{served.url}/v1/translate", json={"text": LONG} | SLOW) for _ in range(3)]
            answers.extend(await asyncio.gather(*asked))

    async def kill():
        while served.server.requests < 3:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        before.kill()

    async def both():
        await asyncio.gather(ask(), kill())

    asyncio.run(both())
    assert [answer.status_code for answer in answers] == [503] * 3
    assert all(answer.headers["Retry-After"] == "1" for answer in answers)
    assert "process has ended" in answers[0].json()["error"]
    tokens = served.metric("saccade_tokens_total")
    assert served.texts("Monday")
    assert child_of(served).pid != before.pid
    assert served.metric("saccade_tokens_total") > tokens


@pytest.mark.parametrize("waits", [True, False])
def test_a_process_that_hears_nothing_is_ended_and_started_anew(trained, monkeypatch, waits):
    monkeypatch.setattr(remote, "STUCK", 0.5)
    with serving(trained, processes=1, time_limit=2, cache=0) as served:
        served.warm()
        stuck = child_of(served)
        stuck.suspend()
        if waits:
            answer = served.translate("Tuesday")
            assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
        else:  # who gives up before that leaves it to the next to find out
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(f"{served.url}/v1/translate", json={"text": "Tuesday"}, timeout=0.2)
        assert served.metric("saccade_requests_total") > 0  # though the model does not say how it stands
        wait_until(lambda: not stuck.is_running() or stuck.status() == psutil.STATUS_ZOMBIE)
        (entry,) = served.server.pool.entries.values()
        wait_until(lambda: entry.loaded is None or entry.loaded.model.gone)  # its end is heard a moment later
        served.warm()
        assert served.texts("Tuesday")
        assert child_of(served).pid != stuck.pid


def test_a_folder_is_loaded_anew_though_the_process_that_began_to_was_killed(trained, tmp_path):
    folder = shutil.copytree(trained, tmp_path / "model", ignore=shutil.ignore_patterns("resume", "tensorboard"))
    with serving(folder, processes=1, reload_every=0.05) as served:
        served.texts("Monday")
        before, us = child_of(served), psutil.Process()
        others = {child.pid for child in us.children()}
        os.utime(folder / "config.yaml")
        wait_until(lambda: any(child.pid not in others for child in us.children()))
        next(child for child in us.children() if child.pid not in others).kill()
        (entry,) = served.server.pool.entries.values()
        wait_until(lambda: entry.loaded is not None and child_of(served).pid != before.pid, 60)
        assert served.texts("Monday")


def test_a_small_models_process_keeps_the_memory_of_a_step_unless_told_otherwise(trained, monkeypatch):
    with serving(trained, processes=1) as served:
        served.texts("Monday")
        assert int(child_of(served).environ()["MALLOC_TRIM_THRESHOLD_"]) > 100 * 2**20
    with monkeypatch.context() as patched:
        patched.setattr(replicas, "SMALL", 1)
        with serving(trained, processes=1) as served:
            served.texts("Monday")
            assert "MALLOC_TRIM_THRESHOLD_" not in child_of(served).environ()
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "4096")
    with serving(trained, processes=1) as served:
        served.texts("Monday")
        assert child_of(served).environ()["MALLOC_TRIM_THRESHOLD_"] == "4096"


def test_a_folder_that_cannot_be_loaded_is_said_so(trained, tmp_path):
    folder = tmp_path / "broken"
    shutil.copytree(trained, folder)
    with serving(folder, processes=1, reload_every=0) as served:
        (folder / "model.safetensors").write_bytes(b"no weights")
        answer = served.translate("Monday")
        assert answer.status_code == 400
        assert "model.safetensors" in answer.json()["error"]


def test_the_process_ends_with_the_server_however_that_ends(trained):
    line = [sys.executable, "-m", "saccade", "serve", str(trained), "--port", "0", "--no-open", "--engine", "torch"]
    for ending in (signal.SIGTERM, signal.SIGKILL):
        with subprocess.Popen(line, stderr=subprocess.PIPE, text=True) as started:
            while "model loaded" not in (said := started.stderr.readline()):
                assert said, "it ended"
            (child,) = psutil.Process(started.pid).children()
            child.send_signal(signal.SIGTERM)  # a manager of services may tell all processes of a group
            child.send_signal(signal.SIGINT)
            assert child.is_running()
            started.send_signal(ending)
            status = started.wait(30)
        assert status == (0 if ending == signal.SIGTERM else -9)
        wait_until(lambda gone=child: not gone.is_running())


@pytest.mark.parametrize(
    "error", [Busy("later", 7), TooMany("yours", 3), TooLarge("much"), SaccadeError("search.beam=0"), KeyError("ours")]
)
def test_an_error_is_the_same_on_the_other_side(error):
    again = error_of(json.loads(json.dumps(problem_of(error))))
    expected = RuntimeError if isinstance(error, KeyError) else type(error)
    assert type(again) is expected
    assert str(again) == str(error)
    assert getattr(again, "retry_after", None) == getattr(error, "retry_after", None)


GREETING = Frame.of(1, "part", Part(index=0, text="Grüße\n\u2028"))


async def heard_of(data: bytes, size: int) -> list[Frame]:
    """What is heard of bytes that come a few at a time, until the other side has gone."""
    ours, theirs = socket.socketpair()
    found: list[Frame] = []
    wire = Wire(found.append)
    await asyncio.get_running_loop().create_unix_connection(lambda: wire, sock=ours)
    with theirs:
        for start in range(0, len(data), size):
            theirs.sendall(data[start : start + size])
            await asyncio.sleep(0.001)
    await wire.ended
    return found


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_frames_come_out_as_they_went_in_and_half_of_one_is_the_end(size):
    said = [GREETING, Frame.of(2, "stop"), Frame.of(3, "answer", {"a b": [1, None]})]
    whole = b"".join(frame.packed() for frame in said)
    assert asyncio.run(heard_of(whole, size)) == said
    assert [frame.how for frame in said] == [{"index": 0, "text": "Grüße\n\u2028"}, None, {"a b": [1, None]}]
    assert asyncio.run(heard_of(whole[:-1], size)) == said[:-1]
    assert asyncio.run(heard_of(struct.pack("!I", 99)[:3], size)) == []


def test_what_is_said_at_once_goes_out_at_once_and_before_the_line_is_closed():
    async def sent() -> tuple[bytes, bytes]:
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        wire = Wire(lambda frame: None)
        await asyncio.get_running_loop().create_unix_connection(lambda: wire, sock=ours)
        with theirs:
            wire.say(GREETING)
            wire.say(GREETING)
            with pytest.raises(BlockingIOError):
                theirs.recv(1000)
            await asyncio.sleep(0)
            first = theirs.recv(1000)
            wire.say(GREETING)
            wire.close()
            await wire.ended
            return first, theirs.recv(1000)

    assert asyncio.run(sent()) == (2 * GREETING.packed(), GREETING.packed())


@pytest.fixture(scope="module")
def doubled(trained):
    with serving(trained, processes=2, cache=0) as one:
        one.texts("Monday")
        yield one


def processes_of(served) -> list[psutil.Process]:
    models = next(iter(served.server.pool.entries.values())).loaded.model.models
    return [psutil.Process(model.process.pid) for model in models]


def test_a_large_request_is_shared_out_and_comes_back_in_its_order(doubled, trained):
    texts = [f"May {day}, {year}" for day in range(1, 21) for year in (1999, 2010)]
    before = [sum(process.cpu_times()[:2]) for process in processes_of(doubled)]
    assert doubled.texts(texts) == [t.text for t in saccade.load(trained, engine="torch").translate(texts)]
    prefixes = [f"{number}" for number in range(len(texts))]
    found = doubled.texts(texts, prefix=prefixes)
    assert all(text.startswith(prefix) for text, prefix in zip(found, prefixes, strict=True))
    after = [sum(process.cpu_times()[:2]) for process in processes_of(doubled)]
    assert all(now > then for then, now in zip(before, after, strict=True)), "one of them did nothing"


def test_small_requests_go_to_whoever_has_least_to_do(doubled):
    async def ask():
        async with httpx.AsyncClient(timeout=60) as client:
            slow = [
                asyncio.create_task(client.post(f"{doubled.url}/v1/translate", json={"text": LONG} | SLOW))
                for _ in range(2)
            ]
            while doubled.server.requests < 2:
                await asyncio.sleep(0.01)
            model = next(iter(doubled.server.pool.entries.values())).loaded.model
            shared = list(model._texts)
            for task in slow:
                task.cancel()
            return shared

    assert asyncio.run(ask()) == [1, 1]
    wait_until(lambda: doubled.server.requests == 0)
    wait_until(lambda: doubled.rows == 0)


def test_a_large_request_of_which_a_part_fails_fails_whole_and_leaves_nothing(doubled):
    texts = [f"May {day}" for day in range(1, 41)]
    answer = doubled.translate(texts, search={"beam": 2, "n_best": 3})
    assert answer.status_code == 400
    wait_until(lambda: doubled.rows == 0 and doubled.waiting == 0)
    killed = processes_of(doubled)[1]
    killed.kill()
    wait_until(lambda: not killed.is_running() or killed.status() == psutil.STATUS_ZOMBIE)
    wait_until(lambda: doubled.translate(texts).status_code == 200)
    assert killed.pid not in [process.pid for process in processes_of(doubled)]


def test_cores_are_shared_out_by_the_size_of_the_model(trained, monkeypatch):
    import torch

    from saccade.serving.settings import ServingSettings

    monkeypatch.setattr(torch, "get_num_threads", lambda: 6)
    assert replicas.shares_of(trained, ServingSettings(processes=None))[:2] == (4, 1)
    assert replicas.shares_of(trained, ServingSettings(processes=2))[:2] == (2, 3)
    assert replicas.shares_of(trained, ServingSettings(processes=None, device="cuda"))[:2] == (1, 6)
    monkeypatch.setattr(replicas, "SMALL", 10)
    assert replicas.shares_of(trained, ServingSettings(processes=None))[:2] == (1, 6)


def test_a_long_text_is_made_ready_beside_the_others_and_answers_the_same(served, trained):
    text = "Monday, May 3, 2021. " * 250  # more than is made ready in the event loop
    assert served.texts(text, search={"beam": 1}) == [
        saccade.load(trained, engine="torch").translate(text, beam=1).text
    ]
    refused = served.translate(text, search={"split": "never"})
    assert refused.status_code == 400
    assert "more than the" in refused.json()["error"]
    wait_until(lambda: served.server.requests == 0)


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="malloc is told by the environment where it is glibc's"
)
@pytest.mark.parametrize("told", [True, False])
def test_a_process_that_keeps_memory_has_it_from_the_start(told):
    told_so = {name: str(size) for name, size in KEEPING.items()} if told else {}
    code = (
        "import psutil, os; from saccade.serving.keeping import take_what_will_be_kept as take\n"
        "of = psutil.Process(os.getpid()).memory_info; before = of().rss; take(); print(of().rss - before)"
    )
    line = [sys.executable, "-c", code]
    grown = int(subprocess.run(line, env=os.environ | told_so, check=True, capture_output=True, text=True).stdout)
    assert grown > 0.8 * TAKEN if told else grown < 0.1 * TAKEN
