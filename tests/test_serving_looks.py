"""The calls behind the page: looks, alternatives, a run that is training, the reference."""

import asyncio
import json
import re
import shutil

import httpx
import pytest
from served import serving, wait_until

import saccade
from saccade.generation.orders import Order
from saccade.looking.json import from_json
from saccade.serving.alternatives import next_pieces


@pytest.fixture(scope="module")
def served(trained, second):
    with serving(trained, second, watch=trained) as one:
        yield one


def post(served, path, **body):
    return httpx.post(f"{served.url}/v1/{path}", json=body, timeout=30)


def test_a_look_has_the_heads_that_were_asked_for(served, trained):
    answer = post(served, "look", text="January 5, 2021", layers=[1], heads=[2], n_best=2)
    assert answer.status_code == 200
    look = from_json(answer.text)
    assert look.model == trained.name
    assert [path.target.text for path in look.paths] == [
        t.text for t in saccade.load(trained, "cpu").translate("January 5, 2021", n_best=2, protect=[]).n_best
    ]
    assert {(head.layer, head.head) for head in look.paths[0].heads} == {(1, 2)}
    forced = from_json(post(served, "look", text="Monday", target="Montag").text)
    assert forced.paths[0].target.text == "Montag"


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"text": "Monday", "layers": [9]}, 400, "9"),
        ({"text": " "}, 400, "nothing to look at"),
        ({"text": "one " * 400}, 413, "more than the 160 that are shown"),
        ({"text": "Monday", "model": "none"}, 404, "is not served here"),
    ],
)
def test_a_look_that_cannot_be_had_is_refused(served, body, status, said):
    answer = post(served, "look", **body)
    assert answer.status_code == status
    assert said in answer.json()["error"]


@pytest.mark.parametrize("model", [0, 1])
def test_alternatives_are_words_each_with_the_translation_that_follows(served, trained, second, model):
    folder = (trained, second)[model]
    translator = saccade.load(folder, "cpu", engine="torch")
    text = "January 5, 2021"
    best = translator.translate(text, protect=[], guard=False).text
    prefix = best.split()[0]
    answer = post(served, "alternatives", text=text, prefix=prefix, count=4, model=folder.name).json()
    assert len(answer["words"]) == len(set(answer["words"])) == len(answer["translations"])
    assert 1 <= len(answer["words"]) <= 4
    assert answer["probabilities"] == sorted(answer["probabilities"], reverse=True)
    for other, translation in zip(answer["words"], answer["translations"], strict=True):
        assert translation.split()[: len(prefix.split()) + 1] == [*prefix.split(), other]
    settings, target = translator.settings_for(), translator.tokenizers.target
    (job,), begun = translator.told([text], settings), target.encode(prefix)
    orders = [Order((*begun, piece)) for piece, _ in next_pieces(translator, job.source, begun, 8)]
    alone = translator.own_engine.search([translator.with_order(job, order, settings) for order in orders], settings)
    assert set(answer["translations"]) <= {target.decode(hypotheses[0].tokens) for hypotheses in alone}


def test_alternatives_at_the_beginning_have_no_prefix(served):
    answer = post(served, "alternatives", text="Monday", prefix="", count=3)
    assert answer.status_code == 200
    assert len(answer.json()["words"]) == 3
    assert post(served, "alternatives", text=" ", prefix="").status_code == 400


def moments(served, enough):
    found = []
    with served.client() as client, client.stream("GET", "/v1/watch") as response:
        for line in response.iter_lines():
            if line.startswith("data: "):
                found.append(json.loads(line.removeprefix("data: ")))
                if enough(found):
                    break
    return found


def test_a_run_that_is_over_is_told_to_its_end(served, trained):
    wait_until(lambda: served.server.watch.ended)
    found = moments(served, lambda events: events[-1]["kind"] == "end")
    kinds = [event["kind"] for event in found]
    assert kinds.count("log") == len((trained / "log.jsonl").read_text().splitlines())
    sample = next(event["row"] for event in found if event["kind"] == "sample")
    assert sample["source"]
    assert len(sample["attention"]) == len(sample["target_words"])
    assert {event["row"]["step"] for event in found if event["kind"] == "sample"} >= {100, 120}


def test_a_run_that_goes_on_is_told_as_it_goes(trained, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    rows = (run / "log.jsonl").read_text().splitlines(keepends=True)
    (run / "record.json").unlink()
    (run / "log.jsonl").write_text("".join(rows[:3]) + rows[3][:10])  # the last line is half written
    weights = (run / "model.safetensors").read_bytes()
    (run / "model.safetensors").unlink()
    with serving(watch=run) as served:
        assert httpx.get(f"{served.url}/v1/models").json() == {"models": []}
        assert served.translate("Monday").status_code == 404
        wait_until(lambda: len(served.server.watch.rows) == 3)
        served.server.watch.every = 0.05
        (run / "model.safetensors").write_bytes(weights)
        with open(run / "log.jsonl", "a") as log:
            log.write(rows[3][10:])
        found = moments(served, lambda events: {"log", "sample"} <= {e["kind"] for e in events} and len(events) > 4)
        assert json.loads(rows[3]) in [event["row"] for event in found]
        assert served.texts("Monday")  # it translates now, so it is served


def test_who_follows_a_silent_run_does_not_hold_up_the_end_of_the_server(tmp_path):
    (tmp_path / "log.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
    with serving(watch=tmp_path) as served, httpx.stream("GET", f"{served.url}/v1/watch", timeout=10) as followed:
        lines = followed.iter_lines()
        assert next(lines) == "event: log"
        asyncio.run_coroutine_threadsafe(served.server.drain(), served.loop).result()
        assert list(lines)[-1] == "", "the answer has an end"
        later = httpx.get(f"{served.url}/v1/watch", timeout=10)
        assert later.status_code == 200, "and so has one that begins now"


def test_without_a_run_to_watch_there_is_nothing_to_follow(trained):
    with serving(trained) as served:
        answer = httpx.get(f"{served.url}/v1/watch")
        assert answer.status_code == 404
        assert "--watch FOLDER" in answer.json()["error"]


def test_the_reference_is_a_page_that_needs_nothing_from_afar(served):
    page = httpx.get(f"{served.url}/docs").text
    assert "/v1/translate" in page
    assert "Terms and what they must become." in page
    assert "http://" not in page
    assert "https://" not in page
    assert "<script" not in page
    assert httpx.get(f"{served.url}/docs/style.css").headers["content-type"].startswith("text/css")
    assert "`" not in page, "what is code is written as code"
    for said in ("integer from 1 to 16, else <code>1</code>", "list of [integer, integer]", "string, needed"):
        assert said in page
    linked = set(re.findall(r'href="docs#(\w+)"', page))
    assert {"Result", "Hypothesis", "Token", "ModelCard", "Detected"} <= linked
    assert sorted(linked) == sorted(re.findall(r'<h2 id="(\w+)"', page)), "a shape that is named is told, once"
    (icon,) = re.findall(r'rel="icon" href="(.*?)"', page)
    assert httpx.get(f"{served.url}/{icon}").status_code == 200
    described = httpx.get(f"{served.url}/openapi.json").json()
    for path in ("/translate", "/detect", "/translate_file"):
        for body in described["paths"][path]["post"]["requestBody"]["content"].values():
            assert "api_key" in body["schema"]["properties"]
    assert "422" not in json.dumps(described["paths"])


def test_half_a_surrogate_pair_is_no_reason_to_fail(served):
    body = b'{"text": "Monday \\ud800", "prefix": null, "model": "\\udfff"}'
    headers = {"Content-Type": "application/json"}
    assert httpx.post(f"{served.url}/v1/translate", content=body, headers=headers).status_code == 404
    body = b'{"text": "Monday \\ud800"}'
    assert httpx.post(f"{served.url}/v1/translate", content=body, headers=headers).status_code == 200
