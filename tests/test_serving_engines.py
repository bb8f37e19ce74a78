"""With CTranslate2 the server works in small batches, and says the same."""

import shutil

import pytest
from served import serving, wait_until

import saccade
from saccade.export.run import export

pytest.importorskip("ctranslate2")
TEXTS = ["January 5, 2021", "Monday", "", "three hundred and twelve", "<b>May 1</b>, 1999", "5:45 pm"]


@pytest.fixture(scope="module")
def exported(trained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported") / "en-de"
    shutil.copytree(trained, folder)
    export(folder, "ctranslate2", None, None, None)
    return folder


@pytest.fixture(scope="module")
def served(exported):
    with serving(exported, engine="auto", cache=0) as one:
        yield one


def test_answers_are_those_of_the_translator_with_that_engine(served, exported):
    translator = saccade.load(exported, "cpu")
    assert translator.engine.name == "ctranslate2"
    expected = translator.translate(TEXTS * 6)
    assert served.texts(TEXTS * 6) == [translation.text for translation in expected]
    assert served.server.pool.cards()[0].engine == "ctranslate2"


def test_what_the_engine_cannot_do_joins_the_running_batch(served, exported):
    translator = saccade.load(exported, "cpu")
    told = {"coverage_penalty": 0.2}
    assert served.texts(TEXTS, search=told) == [t.text for t in translator.translate(TEXTS, **told)]


def test_work_that_is_cancelled_before_it_has_begun_never_runs(served):
    wait_until(lambda: served.rows == 0)
    texts = [f"May {day}, {year}" for day in range(1, 29) for year in range(1960, 1990)]
    tokens = served.metric("saccade_tokens_total")
    with (
        served.client() as client,
        client.stream("POST", "/v1/translate", json={"text": texts, "stream": True}) as response,
    ):
        next(response.iter_lines())
    wait_until(lambda: served.server.requests == 0)
    assert served.waiting == 0
    wait_until(lambda: served.rows == 0)
    assert not served.worker._at_work
    assert served.metric("saccade_tokens_total") - tokens < 4 * len(texts)
    assert served.texts("Monday")
