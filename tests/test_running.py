"""One running batch: sentences come and go, and no answer depends on who else is there."""

import pytest
import torch

import saccade
from saccade.data.tokenizers import EOS
from saccade.generation.running import Running, width_of

SEARCHES = {
    "greedy": {"beam": 1},
    "beam": {"beam": 4, "n_best": 3},
    "coverage": {"beam": 3, "coverage_penalty": 0.2},
    "sample": {"method": "sample", "n_best": 2, "seed": 3},
    "diverse": {"method": "diverse", "beam": 4, "groups": 2},
    "weighed": {"beam": 3, "repetition_penalty": 1.3},
    "banned": {"beam": 3, "banned": ["Januar"], "no_repeat_ngram": 2},
}
TEXTS = ["January 5, 2021", "Monday", "three hundred and twelve", "5:45 pm", "May 1, 1999", "$ 12.50", "seven"]


@pytest.fixture(scope="module", params=["transformer", "rnn"])
def translator(request, trained, second):
    return saccade.load(trained if request.param == "transformer" else second, "cpu", engine="torch")


def errand_of(translator, texts, search, **told):
    settings = translator.settings_for(**search)
    jobs = translator.told(texts, settings, **told)
    return translator.errand(settings, translator.book(settings), jobs)


def decoded(translator, hypotheses):
    return [translator.tokenizers.target.decode(h.tokens) for h in hypotheses]


@pytest.mark.parametrize("name", SEARCHES)
def test_sentences_that_join_one_by_one_get_the_answers_they_get_alone(translator, name):
    search = SEARCHES[name] | {"guard": False}
    running, found = Running(translator.model), {}
    for text in TEXTS:  # one more after every second step
        running.start(errand_of(translator, [text], search), [text])
        found.update(running.step())
        found.update(running.step())
    while running.sentences:
        found.update(running.step())
    for text, several in zip(TEXTS, translator.stream(TEXTS, **search), strict=True):
        assert decoded(translator, found[text]) == [h.text for h in several.n_best or [several]]
        assert found[text][0].log_prob == pytest.approx(several.score, abs=1e-4)
    assert running.rows == 0
    assert not running.lanes


def test_searches_of_different_settings_run_side_by_side(translator):
    running, found = Running(translator.model), {}
    for name, search in SEARCHES.items():
        keys = [(name, text) for text in TEXTS]
        running.start(errand_of(translator, TEXTS, search), keys)
        found.update(running.step())
    while running.sentences:
        found.update(running.step())
    for name, search in SEARCHES.items():
        alone = translator.stream(TEXTS, guard=False, **search)
        for text, translation in zip(TEXTS, alone, strict=True):
            assert decoded(translator, found[name, text])[0] == translation.text


@pytest.mark.parametrize("name", SEARCHES)
def test_a_sentence_that_is_dropped_leaves_with_its_rows_and_changes_nothing_for_the_others(translator, name):
    search = SEARCHES[name] | {"guard": False, "min_length": 6}
    running, found = Running(translator.model), {}
    running.start(errand_of(translator, TEXTS[:4], search), TEXTS[:4])
    found.update(running.step())
    running.start(errand_of(translator, TEXTS[4:], search), TEXTS[4:])
    before = running.rows
    running.drop([TEXTS[1], TEXTS[5], TEXTS[6], "never came"])
    assert running.rows == before * 4 // 7
    while running.sentences:
        found.update(running.step())
    assert set(found) == {TEXTS[0], *TEXTS[2:5]}
    for text, translation in zip(TEXTS, translator.stream(TEXTS, **search), strict=True):
        if text in found:
            assert decoded(translator, found[text])[0] == translation.text
    running.start(errand_of(translator, TEXTS, search), TEXTS)
    running.drop(TEXTS)
    assert (running.rows, running.sentences, running.lanes, running._keys) == (0, 0, {}, {})


def test_a_short_answer_is_given_out_while_a_long_one_is_written(translator):
    search = {"beam": 1, "guard": False}
    settings = translator.settings_for(**search)
    short, long = translator.told(["Monday", "January 5, 2021"], settings)
    book = translator.book(settings)
    book.rules.append(_never_before_the_limit)
    running = Running(translator.model)
    running.start(translator.errand(settings, book, [short._replace(limit=3), long]), ["short", "long"])
    steps = []
    while running.sentences:
        steps.append([key for key, _ in running.step()])
    assert ["short"] in steps
    assert steps[-1] == ["long"]
    assert steps.index(["short"]) < len(steps) - 1


def _never_before_the_limit(log_probs, prefixes):
    short = prefixes.tokens.size(1) < prefixes.limits - 1
    log_probs[:, EOS].masked_fill_(short, -float("inf"))
    return log_probs


def test_what_is_known_so_far_is_the_beginning_of_a_greedy_answer(translator):
    running, seen = Running(translator.model), []
    running.start(errand_of(translator, TEXTS[:2], {"beam": 1}), TEXTS[:2])
    found = {}
    while running.sentences:
        if TEXTS[0] not in found and TEXTS[0] in running._at_work:
            seen.append(running.so_far(TEXTS[0]))
        found.update(running.step())
    final = found[TEXTS[0]][0].tokens
    assert seen
    assert all(final[: len(ids)] == ids for ids in seen)
    assert [len(ids) for ids in seen] == list(range(1, len(seen) + 1))


def test_long_sources_have_a_lane_of_their_own(trained):
    translator = saccade.load(trained, "cpu", engine="torch")
    long = " ".join(["Monday"] * 120)
    running = Running(translator.model)
    search = {"beam": 2, "split": "never", "max_length": 8}
    running.start(errand_of(translator, [long], search), ["long"])
    running.start(errand_of(translator, ["Monday"], search), ["short"])
    assert len(running.lanes) == 2
    assert running.cells(64) == 2 * 64
    assert width_of(64) == 64
    assert width_of(65) == 128
    assert torch.is_grad_enabled()
