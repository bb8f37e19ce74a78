"""Bounded in every way: what is too much is refused, and what nobody waits for is not done."""

import asyncio
import json
import shutil
import socket
import threading
import time

import httpx
import pytest
import uvicorn
from served import serving, wait_until

import saccade
from saccade.serving import connections
from saccade.serving.cache import AnswerCache
from saccade.serving.schemas import Hypothesis, Result
from saccade.serving.server import Server
from saccade.serving.settings import ServingSettings

SLOW = {"search": {"min_length": 512, "max_length_extra": 256, "max_length": 4096, "guard": False, "split": "never"}}


@pytest.fixture(scope="module")
def served(trained):
    with serving(trained, cache=0) as one:
        one.texts("Monday")
        yield one


def long_text(number: int) -> str:
    return f"Monday, May {number}, " + "one " * 100


def head_of(length: int) -> bytes:
    lines = (
        "POST /v1/translate HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        f"Content-Length: {length}",
    )
    return "\r\n".join((*lines, "", "")).encode()


def in_background(function, *arguments):
    thread = threading.Thread(target=function, args=arguments, daemon=True)
    thread.start()
    return thread


def test_a_client_that_goes_away_takes_its_rows_with_it(served):
    sockets = []
    for number in range(6):
        body = json.dumps({"text": long_text(number)} | SLOW).encode()
        head = f"POST /v1/translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
        head += "Content-Type: application/json"
        connection = socket.create_connection(("127.0.0.1", served.port))
        connection.sendall(head.encode() + b"\r\n\r\n" + body)
        sockets.append(connection)
    wait_until(lambda: served.metric("saccade_rows") > 0)
    wait_until(lambda: served.server.requests == 6)
    stopped = served.metric("saccade_stopped_total")
    for connection in sockets:
        connection.close()
    wait_until(lambda: served.server.requests == 0)
    wait_until(lambda: served.metric("saccade_rows") == 0)
    assert served.waiting == 0
    assert served.metric("saccade_stopped_total") == stopped + 6
    assert not served.worker._at_work
    assert served.texts("Monday")


def test_a_stream_that_nobody_reads_any_more_stops(served):
    with served.client() as client:
        with client.stream("POST", "/v1/translate", json={"text": long_text(1), "stream": True} | SLOW) as response:
            lines = response.iter_lines()
            assert next(lines) == "event: part"
        wait_until(lambda: served.server.requests == 0)
    wait_until(lambda: served.rows == 0)


def test_the_time_limit_stops_the_work(trained):
    with serving(trained, time_limit=0.3) as served:
        served.warm()
        answer = served.translate([long_text(1), long_text(2)], **SLOW)
        assert answer.status_code == 504
        assert "not done in 0.3 seconds, and stopped" in answer.json()["error"]
        wait_until(lambda: served.rows == 0)
        assert not served.worker._at_work
        assert served.texts("Monday")


def test_a_full_queue_refuses_with_a_time_to_come_back_and_service_returns(trained):
    outcomes: list[int] = []
    with serving(trained, cache=0, max_waiting=40, time_limit=2) as served:
        served.texts("Monday")

        def ask(number):
            outcomes.append(served.translate([long_text(number)] * 20, **SLOW).status_code)

        background = [in_background(ask, number) for number in range(12)]  # 240 where a few run and 40 may wait
        wait_until(lambda: len(outcomes) > 0 or served.waiting >= 20)
        answer = served.translate(["Tuesday, May 4"] * 40)
        assert answer.status_code == 503
        assert int(answer.headers["Retry-After"]) >= 1
        assert "waiting already" in answer.json()["error"]
        assert served.translate(["Monday"] * 41).status_code == 413
        for thread in background:
            thread.join()
        assert 503 in outcomes
        assert set(outcomes) <= {200, 503, 504}
        wait_until(lambda: served.rows == 0)
        assert served.texts("Monday")


def test_a_client_with_much_to_do_does_not_keep_another_waiting(trained):
    """Sentences are taken client by client: the small request is done long before the large one."""
    with serving(trained, cache=0) as served:
        served.texts("Monday")
        order = []

        def ask(name, texts):
            future = asyncio.run_coroutine_threadsafe(served.server.translate(texts, client=name), served.loop)
            future.result()
            order.append(name)

        large = in_background(
            ask, "large", [f"May {day}, {year}" for day in range(1, 21) for year in range(1950, 1990)]
        )
        wait_until(lambda: served.waiting > 100)
        ask("small", ["Monday"])
        assert order == ["small"]
        assert served.waiting > 0
        large.join()


def test_a_body_that_is_too_large_is_refused_before_it_is_read(served):
    with socket.create_connection(("127.0.0.1", served.port)) as connection:
        connection.sendall(head_of(9_999_999_999))  # and not a byte of the body
        answer = connection.makefile("rb").read().decode()
    assert answer.startswith("HTTP/1.1 413")
    assert "larger than the 1,048,576 bytes" in answer


def test_a_body_without_a_length_is_refused_when_it_is_seen_to_be_too_large(served):
    def body():
        for _ in range(400):
            yield b"x" * 8192

    with served.client() as client:
        try:
            answer = client.post("/v1/translate", content=body(), headers={"Content-Type": "application/json"})
            assert answer.status_code == 413
        except httpx.WriteError:
            pass  # refused while it was still sending
    assert served.texts("Monday")


def closed_after(port: int, *sent: bytes) -> bytes:
    """All that comes back until the server hangs up."""
    found = b""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        try:
            for piece in sent:
                connection.sendall(piece)
            while piece := connection.recv(65536):
                found += piece
        except ConnectionError:
            pass
    return found


@pytest.mark.parametrize("piece", [b"X: " + b"y" * 60_000 + b"\r\n", b"X: y\r\n" * 10_000, b"z" * 60_000])
def test_the_head_of_a_request_that_has_no_end_is_not_kept(served, piece):
    begun = b"GET / HTTP/1.1\r\nHost: localhost\r\n" if piece.startswith(b"X") else b"GET /"
    closed_after(served.port, begun, *[piece] * 100)
    assert served.texts("Monday")
    chunk = b"POST /v1/translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    chunk += b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
    closed_after(served.port, chunk, *[b"X: y\r\n" * 10_000] * 100)
    wait_until(lambda: served.server.requests == 0)


@pytest.mark.parametrize(
    "begun", [b"", b"GET /health HTTP/1.1\r\nHost: loc", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGE"]
)
def test_a_client_that_does_not_say_what_it_wants_loses_its_place(trained, monkeypatch, begun):
    monkeypatch.setattr(connections, "HEAD_SECONDS", 1.0)
    with serving(trained) as served:
        assert closed_after(served.port, begun).count(b"HTTP/1.1 200") == begun.count(b"\r\n\r\n")


def test_a_body_that_does_not_come_is_not_waited_for(trained):
    with serving(trained, time_limit=0.3) as served:
        answer = closed_after(served.port, head_of(1000), b'{"text"')
        assert answer.startswith(b"HTTP/1.1 408")
        assert b"was not there within 0.3 seconds" in answer


def test_an_answer_that_is_not_taken_is_given_up(monkeypatch):
    monkeypatch.setattr(connections, "TAKEN_SECONDS", 0.2)
    given_up = threading.Event()

    async def endless(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(64):
            await send({"type": "http.response.body", "body": b"x" * 2**20, "more_body": True})
        given_up.set()

    config = uvicorn.Config(endless, port=0, http=connections.Connection, lifespan="off", log_level="critical")
    web = uvicorn.Server(config)
    thread = in_background(web.run)
    wait_until(lambda: web.started)
    with socket.create_connection(web.servers[0].sockets[0].getsockname()) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        wait_until(given_up.is_set)
    web.should_exit = True
    thread.join(20)


def test_requests_that_come_all_at_once_on_one_connection_are_not_kept(served):
    asked = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    last = asked.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    few, many = (closed_after(served.port, asked * count + last) for count in (9, 1_000))
    assert few.count(b"HTTP/1.1 200") == 10
    assert many.count(b"HTTP/1.1 200") < 100


def test_answers_are_kept_and_given_again(trained):
    with serving(trained) as served:
        first = served.texts(["Monday", "Tuesday"])
        tokens = served.metric("saccade_tokens_total")
        assert tokens > 0
        assert served.texts(["Tuesday", "Monday"]) == first[::-1]
        assert served.metric("saccade_tokens_total") == tokens
        assert served.metric("saccade_cache_hits") == 2
        served.texts("Monday", search={"beam": 1})  # something else was asked for
        assert served.metric("saccade_tokens_total") > tokens


def test_the_cache_is_bounded_by_memory_and_forgets_the_least_recently_used():
    cache = AnswerCache(5_000)
    answers = [Result(index=0, translations=[Hypothesis(text=str(i) * 100, score=0.0)]) for i in range(10)]
    for i, answer in enumerate(answers):
        cache.put(("v", i), answer)
        assert cache.size <= 5_000
        assert cache.get(("v", 0), 7) is not None  # used again and again, so it stays
    assert len(cache) < 10
    assert cache.get(("v", 1), 0) is None
    kept = cache.get(("v", 0), 3)
    assert kept.index == 3
    cache.put("large", Result(index=0, translations=[Hypothesis(text="x" * 9_000, score=0.0)]))
    assert cache.get("large", 0) is None


def copied(folder, place):
    shutil.copytree(folder, place, ignore=shutil.ignore_patterns("resume", "tensorboard"))
    return place


def test_models_are_loaded_when_asked_for_and_leave_under_a_memory_budget(trained, second, tmp_path):
    folders = [copied(trained, tmp_path / name) for name in ("a", "b")] + [second]
    sizes = [1.3 * (folder / "model.safetensors").stat().st_size for folder in folders]
    with serving(*folders, memory=(sizes[0] + sizes[1] + 1000) / 2**30) as served:
        assert served.metric("saccade_models_loaded") == 0
        assert served.texts("Monday", model="a") == served.texts("Monday", model="b")
        assert served.metric("saccade_models_loaded") == 2
        served.texts("Monday", model="a")
        served.texts("Monday", model=second.name)
        loaded = {card["name"]: card["loaded"] for card in httpx.get(f"{served.url}/v1/models").json()["models"]}
        assert loaded == {"a": True, "b": False, second.name: True}


def test_a_model_that_can_never_fit_is_refused_at_once(trained):
    with pytest.raises(saccade.SaccadeError, match=r"more than --memory 1e-06; raise it"):
        Server([trained], ServingSettings(memory=1e-6))


def test_a_folder_that_changes_is_loaded_anew_and_no_request_is_dropped(trained, second, tmp_path):
    folder = copied(trained, tmp_path / "model")
    other = saccade.load(second, "cpu").translate("January 5, 2021").text
    failed, stop = [], threading.Event()
    with serving(folder, reload_every=0.05, cache=0) as served:
        before = served.texts("January 5, 2021")[0]

        def ask():
            while not stop.is_set():
                answer = served.translate("January 5, 2021")
                if answer.status_code != 200:
                    failed.append(answer.text)

        thread = in_background(ask)
        for path in second.iterdir():
            if path.is_file():
                shutil.copy2(path, folder / f"{path.name}.new")
                (folder / f"{path.name}.new").replace(folder / path.name)
        wait_until(lambda: served.texts("January 5, 2021")[0] == other)
        stop.set()
        thread.join()
        assert not failed
        assert before != other
        assert served.metric("saccade_models_loaded") == 1
        wait_until(lambda: httpx.get(f"{served.url}/v1/models").json()["models"][0]["family"] == "rnn")


def test_a_folder_half_written_leaves_the_old_model_at_work(trained, tmp_path):
    folder = copied(trained, tmp_path / "model")
    with serving(folder, reload_every=0.05) as served:
        before = served.texts("January 5, 2021")
        (folder / "model.safetensors").write_bytes(b"half")
        time.sleep(0.5)
        assert served.texts("January 5, 2021") == before


def test_counts_are_there_for_prometheus(served):
    served.texts("Monday")
    page = httpx.get(f"{served.url}/metrics")
    assert page.headers["content-type"].startswith("text/plain")
    assert 'saccade_requests_total{path="/v1/translate",status="200"}' in page.text
    assert "saccade_request_seconds_bucket" in page.text
    httpx.get(f"{served.url}/made/up")
    assert 'path="other",status="404"' in httpx.get(f"{served.url}/metrics").text


def test_a_client_that_goes_away_while_its_model_is_loading_leaves_it_to_the_next(trained):
    def models() -> int:
        return sum(thread.name == "saccade-model" for thread in threading.enumerate())

    before = models()
    with serving(trained) as served:
        body = json.dumps({"text": "Monday"}).encode()
        with socket.create_connection(("127.0.0.1", served.port)) as connection:
            connection.sendall(head_of(len(body)) + body)
            wait_until(lambda: served.server.requests == 1)
        wait_until(lambda: served.server.requests == 0)
        assert served.texts("Monday")
        assert models() == before + 1
    assert models() == before
