"""Reranking by a second folder: the order is that of the published sum, recomputed pair by pair."""

from pathlib import Path

import pytest
from conftest import TINY, Command

import saccade
from saccade.errors import SaccadeError
from saccade.generation.rerank import Judge

LINES = ["January 5, 2021", "seventeen", "", "8:15 PM and seven euros", "Friday, March 28, 1986"]


@pytest.fixture(scope="module")
def backward(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that translates the other way, with pieces of its own."""
    folder = tmp_path_factory.mktemp("backward") / "de-en"
    saccade.train(
        *TINY,
        "data.source=de",
        "data.target=en",
        "tokenizer.kind=characters",
        "training.max_steps=8",
        out=folder,
        quiet=True,
    )
    return folder


def by_hand(pool, judges, length_penalty=1.0):
    """(score, text) of each candidate, one pair at a time, the best first."""
    found = []
    for candidate in pool:
        total = candidate.score
        for judge in judges:
            pair = (candidate.text, candidate.source) if judge.reverse else (candidate.source, candidate.text)
            total += judge.weight * judge.scorer.score([pair[0]], [pair[1]])[0]
        found.append((total / ((5 + len(candidate.tokens) + 1) / 6) ** length_penalty, candidate.text))
    return sorted(found, key=lambda one: -one[0])


@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
def test_the_order_is_that_of_the_weighted_sum(trained: Path, second: Path, backward: Path, length_penalty) -> None:
    translator, other, back = saccade.load(trained), saccade.load(second), saccade.load(backward)
    options = {"beam": 6, "length_penalty": length_penalty, "protect": []}
    pool = translator.translate(LINES, **options, n_best=6)
    plain = [[t.text for t in one.n_best] for one in pool]
    changed = 0
    for judges in (
        [Judge(other, 0.5)],
        [Judge(back, 2.0, reverse=True)],
        [Judge(other, 0.7), Judge(back, 1.5, reverse=True)],
    ):
        ranked = translator.translate(LINES, **options, n_best=6, judges=judges)
        changed += [[t.text for t in one.n_best] for one in ranked] != plain
        for candidates, translation in zip(pool, ranked, strict=True):
            expected = by_hand(candidates.n_best, judges, length_penalty)
            assert [t.text for t in translation.n_best] == [text for _, text in expected]
            own = {t.text: t.score for t in candidates.n_best}
            assert [t.score for t in translation.n_best] == pytest.approx(
                [own[t.text] for t in translation.n_best], abs=1e-4
            ), "the score stays the first folder's log-probability"
        first = translator.translate(LINES, **options, judges=judges)
        assert [t.text for t in first] == [t.text for t in ranked], "one translation is chosen from the whole beam"
    assert changed >= 2


def test_a_judge_without_weight_changes_nothing(trained: Path, second: Path) -> None:
    translator = saccade.load(trained)
    plain = translator.translate(LINES, beam=4, n_best=4)
    judged = translator.translate(LINES, beam=4, n_best=4, judges=[Judge(saccade.load(second), 0.0)])
    assert [[t.text for t in one.n_best] for one in judged] == [[t.text for t in one.n_best] for one in plain]


@pytest.mark.parametrize("weight", [float("nan"), float("inf")])
def test_a_weight_that_orders_nothing_is_refused(trained: Path, weight: float) -> None:
    with pytest.raises(SaccadeError, match="give a finite number"):
        Judge(saccade.load(trained), weight)


def test_draws_are_reranked_too_and_the_batch_never_matters(trained: Path, second: Path) -> None:
    translator, judges = saccade.load(trained), [Judge(saccade.load(second), 1.0)]
    options = {"method": "sample", "beam": 6, "temperature": 0.8, "protect": []}
    pool = translator.translate(LINES, **options, n_best=6)
    ranked = translator.translate(LINES, **options, judges=judges)
    for candidates, translation in zip(pool, ranked, strict=True):
        if candidates.n_best:
            assert translation.text == by_hand(candidates.n_best, judges)[0][1]
    assert [translator.translate(line, **options, judges=judges).text for line in LINES] == [t.text for t in ranked]


def test_the_command_line_reranks(trained: Path, second: Path, backward: Path, command: Command) -> None:
    translator, text = saccade.load(trained), "\n".join(LINES).encode()
    forward = command("translate", trained, "--rerank", second, "--rerank-weight", 0.5, stdin=text)
    expected = translator.translate(LINES, judges=[Judge(saccade.load(second), 0.5)])
    assert forward.out.split("\n")[:-1] == [t.text for t in expected]
    reverse = command("translate", trained, "--rerank", backward, "--rerank-reverse", "--n-best", 2, stdin=text)
    expected = translator.translate(LINES, n_best=2, judges=[Judge(saccade.load(backward), 1.0, reverse=True)])
    rows = [line.split(" ||| ") for line in reverse.out.splitlines()]
    assert [row[1] for row in rows] == [t.text for one in expected for t in one.n_best or [one]]


@pytest.mark.parametrize(
    ("option", "needs"),
    [(["--rerank-weight", 0.5], "--rerank"), (["--rerank-reverse"], "--rerank"), (["--ensemble-log"], "--ensemble")],
)
def test_a_word_on_a_folder_that_was_not_named_is_refused(
    trained: Path, command: Command, option: list[object], needs: str
) -> None:
    done = command("translate", trained, *option, stdin=b"seventeen\n")
    assert done.status == 2
    assert f"{option[0]} says nothing without {needs};" in done.err


def test_what_a_judge_cannot_do_is_said_by_name(trained: Path) -> None:
    translator = saccade.load(trained)
    with pytest.raises(SaccadeError, match=r"search.mbr=3 and reranking both choose"):
        translator.translate("seventeen", mbr=3, judges=[Judge(translator)])
    with pytest.raises(SaccadeError, match=r"search.beam=1 finds one translation"):
        translator.translate("seventeen", beam=1, judges=[Judge(translator)])
    narrow = saccade.Translator(
        translator.config.with_changes({"search": {"max_source": 1}}), translator.tokenizers, translator.model
    )
    with pytest.raises(SaccadeError, match=r"the folder to rerank by cannot score what was found: line 1"):
        translator.translate("Friday, March 28, 1986", judges=[Judge(narrow)])
