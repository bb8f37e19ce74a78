"""Ensembles: one model with itself is that model, several are the mean of their definitions, and every law holds."""

import math
import shutil
from pathlib import Path

import pytest
import test_invariants
import torch
from conftest import TINY, Command
from models_under_test import MODELS, make, sentences
from test_invariants import answers, assert_same, forced
from test_sampling import draws_of

import saccade
from saccade.config import Config
from saccade.errors import SaccadeError
from saccade.generation.diverse import DiverseBeam
from saccade.generation.ensemble import Ensemble
from saccade.generation.search import Beam, Greedy

LINES = ["January 5, 2021", "seventeen", "", "8:15 PM and seven euros", "Friday, March 28, 1986"]
MEANS = ["probabilities", "log-probabilities"]
TOGETHER = {
    "rnn and transformer": ["rnn bahdanau", "transformer rotary, rms, swiglu"],
    "conv, decoder-only and lm": ["convs2s", "transformer causal decoder-only", "lm attention"],
    "without attention": ["rnn cho", "rnn sutskever"],
}
LAWS = [
    test_invariants.test_stepwise_decoding_equals_teacher_forcing,
    test_invariants.test_decoding_in_chunks_equals_teacher_forcing,
    test_invariants.test_padding_never_changes_the_answer,
    test_invariants.test_what_stands_in_the_padding_never_matters,
    test_invariants.test_the_cache_never_changes_the_answer,
    test_invariants.test_scores_are_the_models_own_log_probabilities,
    test_invariants.test_output_never_holds_special_tokens,
]


def together(name, mean="probabilities", lively=2.0):
    members = [make(member, seed=seed, lively=lively) for seed, member in enumerate(TOGETHER[name])]
    return Ensemble(members, mean).eval()


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("name", MODELS)
def test_a_model_with_itself_is_the_model(name, mean):
    model, sources = make(name), sentences([2, 5, 8, 3], seed=9)
    twice = Ensemble([model, model], mean).eval()
    for search in (Greedy(), Beam(4, 0.8, 0.0, 3)):
        for found, expected in zip(answers(twice, sources, search), answers(model, sources, search), strict=True):
            assert_same(found, expected)


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("name", TOGETHER)
def test_it_writes_by_the_mean_of_its_models(name, mean):
    ensemble = together(name, mean, lively=0.7)  # so quiet that no probability is as good as 0
    pairs = list(zip(sentences([5, 9, 2]), sentences([7, 3, 6], seed=2), strict=True))
    each = torch.stack([forced(model, pairs)[0] for model in ensemble.members])
    if mean == "probabilities":
        expected = (sum(log_probs.exp() for log_probs in each) / len(each)).log()
    else:
        product = math.prod(log_probs.exp() ** (1 / len(each)) for log_probs in each)
        expected = (product / product.sum(-1, keepdim=True)).log()
    found, batch = forced(ensemble, pairs)
    real = batch.gold != 0
    torch.testing.assert_close(found[real], expected[real], rtol=0, atol=1e-10)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__.removeprefix("test_"))
@pytest.mark.parametrize("name", TOGETHER)
def test_every_law_of_a_model_holds(name, law, monkeypatch):
    monkeypatch.setattr(test_invariants, "make", lambda *_, **__: together(name))
    law(name)


@pytest.mark.parametrize("kind", test_invariants.SEARCHES)
@pytest.mark.parametrize("name", TOGETHER)
def test_batch_size_order_and_padding_never_change_the_answer(name, kind, monkeypatch):
    monkeypatch.setattr(test_invariants, "make", lambda *_: together(name))
    test_invariants.test_batch_size_order_and_padding_never_change_the_answer(name, kind)


def test_an_ensemble_samples_and_searches_in_groups_and_counts_coverage():
    ensemble, sources = together("rnn and transformer"), sentences([6, 3, 8])
    for search in (DiverseBeam(Beam(4, 1.0, 0.0, 4), 2, 1.0), Beam(3, 1.0, 0.5, 2)):
        for source, found in zip(sources, answers(ensemble, sources, search), strict=True):
            assert_same(found, answers(ensemble, [source], search)[0])
    for source, found in zip(sources, draws_of(ensemble, sources, draws=2), strict=True):
        assert_same(found, draws_of(ensemble, [source], draws=2)[0])
    assert ensemble.attends
    assert not together("without attention").attends


@pytest.mark.parametrize("mean", MEANS)
def test_folders_of_two_families_translate_and_score_together(trained: Path, second: Path, mean) -> None:
    ensemble = saccade.load([trained, second], mean=mean)
    made = ensemble.translate(LINES, n_best=2)
    assert [t.text for t in made] == [ensemble.translate(line).text for line in LINES]
    assert [t.text for t in made] != [t.text for t in saccade.load(trained).translate(LINES)]
    tokenizer, compared = ensemble.tokenizers.target, 0
    for one in made:
        for translation in one.n_best:
            if tokenizer.pieces(tokenizer.encode(translation.text)) == translation.tokens:
                score = ensemble.score([translation.source], [translation.text])[0]
                assert score == pytest.approx(translation.score, abs=1e-4)
                compared += 1
    assert compared >= 3
    assert len(made[0].attentions) == 2, "where both of them looked"


def test_a_folder_with_itself_is_the_folder(trained: Path, command: Command) -> None:
    alone, twice = saccade.load(trained), saccade.load([trained, trained])
    for one, other in zip(alone.translate(LINES), twice.translate(LINES), strict=True):
        assert one.text == other.text
        assert one.score == pytest.approx(other.score, abs=1e-4)
    done = command("translate", trained, "--ensemble", trained, stdin="\n".join(LINES).encode())
    assert done.out.split("\n")[:-1] == [t.text for t in alone.translate(LINES)]


def test_the_command_line_takes_as_many_folders_as_are_named(trained: Path, second: Path, command: Command) -> None:
    text = "\n".join(LINES).encode()
    done = command("translate", trained, "--ensemble", second, "--ensemble", trained, stdin=text)
    expected = saccade.load([trained, second, trained]).translate(LINES)
    assert done.out.split("\n")[:-1] == [t.text for t in expected]
    logs = command("translate", trained, "--ensemble", second, "--ensemble-log", stdin=text)
    expected = saccade.load([trained, second], mean="log-probabilities").translate(LINES)
    assert logs.out.split("\n")[:-1] == [t.text for t in expected]


def test_folders_with_other_vocabularies_are_refused_by_name(trained: Path, tmp_path: Path, command: Command) -> None:
    saccade.train(*TINY, "tokenizer.kind=bytes", "training.max_steps=1", out=tmp_path / "bytes", quiet=True)
    with pytest.raises(SaccadeError, match=r"bytes: its source vocabulary \(260 pieces\) is not that of .*en-de"):
        saccade.load([trained, tmp_path / "bytes"])
    done = command("translate", trained, "--ensemble", tmp_path / "bytes", stdin=b"seventeen\n")
    assert done.status == 2
    assert "cannot write together" in done.err
    with pytest.raises(SaccadeError, match="one folder or more"):
        saccade.load([])
    with pytest.raises(SaccadeError, match="mean='median'"):
        saccade.load([trained, trained], mean="median")


def test_a_folder_that_translates_the_other_way_is_refused_though_its_pieces_are_the_same(
    trained: Path, tmp_path: Path
) -> None:
    shutil.copytree(trained, tmp_path / "back")
    settings = Config.load(trained / "config.yaml").with_changes({"data": {"source": "de", "target": "en"}})
    settings.save(tmp_path / "back" / "config.yaml")
    with pytest.raises(
        SaccadeError, match=r"back: translates de → en, and .*en-de en → de: .*rerank by it, in reverse"
    ):
        saccade.load([trained, tmp_path / "back"])


def test_the_shortest_positions_are_those_of_the_ensemble(trained: Path) -> None:
    translator = saccade.load(trained)
    short = translator.config.with_changes({"model": {"positions": "learned", "max_positions": 9}})
    other = saccade.Translator(short, translator.tokenizers, translator.model)
    assert (translator.longest, saccade.Translator.ensemble([translator, other]).longest) == (None, 9)
