"""What the server answers is what the translator answers, whoever else is asking."""

import json
import threading
from itertools import islice

import httpx
import pytest
from served import serving

import saccade
from saccade.data import builtin

TEXTS = [
    "January 5, 2021",
    "Monday",
    "three hundred and twelve",
    "5:45 pm",
    "",
    "   ",
    "<b>May 1</b>, 1999",
    "{price}: $ 12.50",
    "Monday, May 3. Tuesday, May 4.\n\nseven hundred",
]


@pytest.fixture(scope="module", params=["transformer", "rnn"])
def folder(request, trained, second):
    return trained if request.param == "transformer" else second


@pytest.fixture(scope="module")
def served(folder):
    with serving(folder, patience=0) as one:  # newcomers join midway, whenever they come
        yield one


@pytest.fixture(scope="module")
def translator(folder):
    return saccade.load(folder, "cpu", engine="torch")


@pytest.mark.parametrize(
    "told",
    [
        {},
        {"search": {"beam": 1}},
        {"search": {"method": "sample", "seed": 5, "temperature": 0.7}},
        {"search": {"split": "always", "repetition_penalty": 1.2}},
        {"banned": ["Januar", "Montag"]},
        {"glossary": {"Monday": "Mo."}},
    ],
    ids=str,
)
def test_answers_are_those_of_the_translator(served, translator, told):
    search = told.get("search", {}) | ({"banned": told["banned"]} if "banned" in told else {})
    expected = translator.translate(TEXTS, glossary=told.get("glossary"), **search)
    answer = served.translate(TEXTS, **told).json()
    assert [result["index"] for result in answer["results"]] == list(range(len(TEXTS)))
    for result, translation in zip(answer["results"], expected, strict=True):
        best = result["translations"][0]
        assert best["text"] == translation.text
        assert best["score"] == pytest.approx(translation.score, abs=1e-3)
        assert result["notes"] == translation.notes


def test_prefix_and_phrases_are_kept(served, translator):
    told = {"prefix": ["Am ", "Ein"], "search": {"split": "never"}}
    texts = TEXTS[:2]
    expected = translator.translate(texts, prefix=told["prefix"], split="never")
    assert served.texts(texts, **told) == [translation.text for translation in expected]
    assert served.texts(texts, must=["Juli"]) == [t.text for t in translator.translate(texts, must=["Juli"])]


def test_n_best_alignments_and_tokens_come_on_request(served, translator):
    (result,) = served.translate(TEXTS[0], n_best=3, alignments=True, tokens=True).json()["results"]
    expected = translator.translate(TEXTS[0], n_best=3)
    assert [h["text"] for h in result["translations"]] == [t.text for t in expected.n_best]
    best = result["translations"][0]
    assert best["source_words"] == TEXTS[0].split()
    assert best["target_words"] == best["text"].split()
    assert best["alignment"] == [list(pair) for pair in expected.alignment]
    assert [token["piece"] for token in best["tokens"]] == expected.tokens
    assert all(0 < token["probability"] <= 1 for token in best["tokens"])


def test_many_clients_at_once_get_their_own_answers(served, translator):
    texts = [f"{month} {day}, 20{year}" for month in ("May", "June") for day in (3, 17) for year in range(10, 18)]
    expected = {t.source: t.text for t in translator.translate(texts)}
    found: dict[str, str] = {}

    def ask(part):
        with served.client() as client:
            for text in part:
                answer = client.post("/v1/translate", json={"text": text}).json()
                found[text] = answer["results"][0]["translations"][0]["text"]

    threads = [threading.Thread(target=ask, args=[texts[i::8]]) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == expected


def events_of(response: httpx.Response) -> list[tuple[str, dict]]:
    kinds, found = None, []
    for line in response.iter_lines():
        if line.startswith("event: "):
            kinds = line.removeprefix("event: ")
        elif line.startswith("data: "):
            found.append((kinds, json.loads(line.removeprefix("data: "))))
    return found


def test_a_stream_gives_parts_then_results_then_done(served, translator):
    long = " ".join(f"Monday, May {day}." for day in range(1, 20))
    texts = [long, "Monday"]
    search = {"split": "always", "beam": 1, "guard": False, "protect": []}
    told = {"text": texts, "stream": True, "search": search}
    with served.client() as client, client.stream("POST", "/v1/translate", json=told) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        events = events_of(response)
    kinds = [kind for kind, _ in events]
    assert kinds[-1] == "done"
    assert events[-1][1]["version"]
    assert kinds.count("result") == 2
    assert "part" in kinds
    final = {data["index"]: data["translations"][0]["text"] for kind, data in events if kind == "result"}
    assert [final[0], final[1]] == [t.text for t in translator.translate(texts, **search)]
    parts = [data["text"] for kind, data in events if kind == "part" and data["index"] == 0]
    assert parts
    assert all(final[0].startswith(part) for part in parts)


def test_a_stream_that_fails_ends_in_an_error(served):
    told = {"text": ["Monday. Tuesday."], "stream": True, "prefix": "Am", "search": {"split": "always"}}
    with served.client() as client, client.stream("POST", "/v1/translate", json=told) as response:
        events = events_of(response)
    assert [kind for kind, _ in events] == ["error"]
    assert "prefix is for a whole one" in events[0][1]["error"]


@pytest.mark.parametrize(
    ("told", "status", "said"),
    [
        ({"text": "Monday", "model": "other"}, 404, "model='other' is not served here"),
        ({"text": "Monday", "target": "fr"}, 404, "no model translates that"),
        ({"text": "Monday", "search": {"beam": 99}}, 400, "search.beam=99 is more than the 16"),
        (
            {"text": "Monday", "search": {"shortlist": "/etc/passwd"}},
            400,
            "search.shortlist cannot be set by a request",
        ),
        ({"text": "Monday", "search": {"beem": 2}}, 400, "search.beem cannot be set"),
        ({"text": "Monday", "search": {"beam": "wide"}}, 400, "beam"),
        ({"text": "Monday", "prefix": ["a", "b"]}, 400, "prefix: 2 for 1 texts"),
        ({"text": "Monday", "extra": 1}, 400, "extra"),
        ({"tex": "Monday"}, 400, "text"),
        ({"text": ["Monday"] * 1001}, 413, "1,001 texts in one request, more than 1,000"),
        ({"text": "M" * 200_001}, 413, "200,001 characters in one request"),
        (
            {"text": "x", "banned": ["x" * 10_001]},
            413,
            "must and banned: 10,001 characters in one request, more than 10",
        ),
        ({"text": "x", "must": ["x" * 5_000], "search": {"must": ["y" * 5_001]}}, 413, "must and banned: 10,001"),
        ({"text": "x", "glossary": {"x": "y" * 200_000}}, 413, "glossary, terms and prefix: 200,001 characters"),
        ({"text": "x", "prefix": ["y" * 200_001]}, 413, "glossary, terms and prefix: 200,001 characters"),
        ({"text": "x", "search": {"terms": ["y" * 200_001]}}, 413, "glossary, terms and prefix: 200,001 characters"),
        ({"text": ["Monday", None]}, 400, "text.1: Input should be a valid string"),
        ({"text": {"a": "Monday"}}, 400, "text: Input should be a valid string"),
        ({"text": "x", "prefix": ["y", 5]}, 400, "prefix.1: Input should be a valid string"),
        ({"text": "x", "n_bset": 2}, 400, "n_bset: there is no such field; leave it out"),
    ],
)
def test_what_cannot_be_done_is_said_with_the_field_and_the_remedy(served, told, status, said):
    answer = httpx.post(f"{served.url}/v1/translate", json=told)
    assert answer.status_code == status
    assert said in answer.json()["error"]


@pytest.mark.parametrize(
    ("content", "kind", "said"),
    [
        (b'{"text": "Monday"}', "text/plain", "Content-Type is 'text/plain'; send application/json"),
        (b'{"text": "Monday"}', "", "Content-Type is ''"),
        (b'{"text": "Mon', "application/json", "the request: is no JSON: "),
        (b"\xff\xfe\xff", "application/json", "is no JSON: "),
        (b"[" * 100_000, "application/json", "is no JSON: "),
        (b"", "application/json; charset=utf-8", "is no JSON: "),
        (b"[1]", "application/problem+json", "the request: "),
    ],
)
def test_what_is_no_request_at_all_is_said_too(served, content, kind, said):
    answer = httpx.post(f"{served.url}/v1/translate", content=content, headers={"Content-Type": kind}, timeout=30)
    assert answer.status_code == 400
    assert said in answer.json()["error"]


def test_models_are_listed_with_what_is_known_of_them(served, folder):
    (card,) = httpx.get(f"{served.url}/v1/models").json()["models"]
    assert card["name"] == folder.name
    assert (card["source"], card["target"]) == ("en", "de")
    assert card["attends"] is True
    assert card["parameters"] > 1000
    assert card["examples"] == [source for source, _ in islice(builtin.pairs("en", "de", split="test"), 3)]


def test_health_says_live_and_ready(served):
    assert httpx.get(f"{served.url}/health").json() == {"status": "ok", "live": True, "ready": True}
