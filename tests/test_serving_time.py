"""A request has one time limit, however many parts it is done in."""

import asyncio

import httpx
import pytest
from served import Served, serving, wait_until

PAIR = {"source": "en", "target": "de"}
LINES = [f"May {number}" for number in range(5_000)]
FEW = 4  # texts of a request, so that a page or a file is translated in thousands of parts: seconds, on any machine


def page() -> str:
    return "".join(f"<p>{line}</p>" for line in LINES)


def send(served: Served, name: str, content: str) -> httpx.Response:
    return httpx.post(f"{served.url}/translate_file", files={"file": (name, content)}, data=PAIR, timeout=60)


def stopped(served: Served) -> bool:
    """Nothing is at work, and the most of it has never been."""
    wait_until(lambda: served.server.requests == served.rows == 0)
    return served.metric("saccade_texts_total") < len(LINES) / 2


def test_the_parts_of_a_page_share_the_time_of_its_request(trained):
    with serving(trained, cache=0, max_texts=FEW, time_limit=1) as served:
        served.warm()
        wait_until(lambda: served.translate("Monday").status_code == 200)  # the first takes longer than others
        answer = httpx.post(f"{served.url}/translate", json={"q": page(), "format": "html"} | PAIR, timeout=60)
        assert answer.status_code == 504, answer.text[:200]
        assert answer.json()["error"] == "not done in 1 seconds, and stopped; send less at a time"
        assert stopped(served)
        assert served.texts("Monday")


@pytest.mark.parametrize("name", ["a.txt", "a.html"])
def test_the_parts_of_a_file_share_the_time_of_a_file(trained, name):
    with serving(trained, cache=0, max_texts=FEW, time_limit=60, file_time_limit=1) as served:
        served.warm()
        answer = send(served, name, "\n".join(LINES) if name.endswith("txt") else page())
        assert answer.status_code == 504, answer.text[:200]
        assert answer.json()["error"] == "not done in 1 seconds, and stopped; send a smaller file"
        assert stopped(served)


@pytest.mark.parametrize("processes", [0, 1])
def test_no_part_of_a_file_is_held_to_the_time_of_a_smaller_request(trained, processes):
    with serving(trained, processes=processes, time_limit=0.05, file_time_limit=60) as served:
        served.warm()
        lines = LINES[:400]
        answer = httpx.post(f"{served.url}/translate", json={"q": lines} | PAIR, timeout=60)
        assert answer.status_code == 504
        answer = send(served, "a.txt", "\n".join(lines))
        assert answer.status_code == 200, answer.text
        assert len(httpx.get(answer.json()["translatedFileUrl"]).text.splitlines()) == len(lines)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/translate", {"text": "Monday"}),
        ("/translate", {"q": "Monday"} | PAIR),
        ("/v1/alternatives", {"text": "Monday", "prefix": ""}),
        ("/v1/look", {"text": "Monday"}),
    ],
)
def test_a_model_that_is_being_loaded_is_waited_for_no_longer_either(trained, path, body):
    with serving(trained, time_limit=0.3) as served:
        (entry,) = served.server.pool.entries.values()
        asyncio.run_coroutine_threadsafe(entry.lock.acquire(), served.loop).result()  # it takes as long as we like
        answer = httpx.post(f"{served.url}{path}", json=body, timeout=60)
        assert answer.status_code == 504
        assert answer.json()["error"] == f"model='{trained.name}' is not loaded after 0.3 seconds; ask again"
        assert answer.headers["Retry-After"] == "5"
        served.loop.call_soon_threadsafe(entry.lock.release)
        wait_until(lambda: served.metric("saccade_models_loaded") == 1)  # for whoever asks next
