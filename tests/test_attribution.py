"""Where an output came from, asked in other ways than attention."""

import numpy as np
import pytest
import torch
from models_under_test import make, settings_of

import saccade
from saccade.analysis.agreement import agreements, measure, spearman
from saccade.analysis.attribution import Attributions, Pair, attribute, embeddings
from saccade.data.tokenizers import Tokenizer, Tokenizers
from saccade.errors import SaccadeError
from saccade.translator import Translator

TOKENIZER = Tokenizer.train(["a b c d e f"] * 2, "words", 300)
TEXT = "a b c d", "f e a"


def translator_of(name: str) -> Translator:
    """In float64, and quiet enough that a straight way from nothing to the input is smooth."""
    return Translator(settings_of(name), Tokenizers(TOKENIZER, TOKENIZER), make(name, TOKENIZER.size, lively=0.5))


@pytest.mark.parametrize("name", ["transformer pre-norm", "rnn bahdanau", "convs2s", "transformer untied"])
def test_integrated_gradients_add_up_to_what_the_input_changed(name):
    """Σ_s IG_s = F(x) - F(0), for every target piece (Sundararajan et al. 2017, proposition 1): the end of the source
    is a piece too, and is counted here."""
    pair = Pair(translator_of(name), *TEXT)
    x = embeddings(pair.model, pair.batch)
    wanted = pair.log_probabilities() - pair.log_probabilities(torch.zeros_like(x))
    steps, total = 400, np.zeros(len(pair.ids[1]))
    for start in range(0, steps, 50):
        at = x * ((torch.arange(start, start + 50, dtype=x.dtype) + 0.5) / steps).view(-1, 1, 1)
        total += pair.products(x, at, with_end=True).sum(1) / steps
    np.testing.assert_allclose(total, wanted, atol=1e-2 * np.abs(wanted).max())


def test_gradient_times_input_is_the_derivative_along_the_input():
    """x · ∂F/∂x summed over the source is dF(αx)/dα at α = 1, which a finite difference gives."""
    pair = Pair(translator_of("transformer pre-norm"), *TEXT)
    x = embeddings(pair.model, pair.batch)
    step = 1e-5
    slope = (pair.log_probabilities(x * (1 + step)) - pair.log_probabilities(x * (1 - step))) / (2 * step)
    np.testing.assert_allclose(pair.products(x, x, with_end=True).sum(1), slope, rtol=1e-5)


def test_erasure_is_what_the_score_loses_without_the_word():
    translator = translator_of("rnn bahdanau")
    pair = Pair(translator, *TEXT)
    found = pair.erasure()
    assert found.shape == (3, 4)
    whole = translator.score([TEXT[0]], [TEXT[1]])[0]
    without = translator.score(["a c d"], [TEXT[1]])[0]
    end = Pair(translator, "a c d", TEXT[1])
    # `score` counts the end of the target, which no word of it is.
    ends = [s - p.log_probabilities().sum() for s, p in ((whole, pair), (without, end))]
    assert found[:, 1].sum() == pytest.approx((whole - ends[0]) - (without - ends[1]), abs=1e-9)


def test_pieces_of_words_add_up():
    tokenizer = Tokenizer.train(["a"], "bytes", 300)
    model = make("transformer pre-norm", tokenizer.size, lively=0.5)
    translator = Translator(settings_of("transformer pre-norm"), Tokenizers(tokenizer, tokenizer), model)
    pair = Pair(translator, "ab c", "de f g")
    pieces = pair.gradient_input()
    words = pair.to_words(pieces)
    assert words.shape == (3, 2)
    assert words.sum() == pytest.approx(pieces.sum())
    np.testing.assert_allclose(pair.attention().sum(1) <= 1 + 1e-9, True)


def test_spearman_is_that_of_the_textbook():
    """d = (0, 1, -1, 0): ρ = 1 - 6 · 2 / (4 · 15) = 0.8."""
    assert spearman([1, 2, 3, 4], [1, 3, 2, 4]) == pytest.approx(0.8)
    assert spearman([1, 2, 3], [30, 20, 10]) == pytest.approx(-1.0)
    assert spearman([1, 1, 2], [1, 2, 3]) == pytest.approx(np.corrcoef([1.5, 1.5, 3], [1, 2, 3])[0, 1])
    assert spearman([1, 1, 1], [1, 2, 3]) == 0.0


def test_methods_that_say_the_same_agree_wholly():
    rows = np.array([[0.1, 0.7, 0.2], [0.5, 0.3, 0.2]])
    found = agreements([Attributions(["x"] * 3, ["y"] * 2, rows, -rows, rows[:, ::-1].copy(), rows)])
    by_pair = {(each.one, each.other): each for each in found}
    assert by_pair["attention", "gradient_input"].spearman == pytest.approx(1.0)
    assert by_pair["attention", "erasure"].same_word == 1.0
    assert by_pair["attention", "integrated_gradients"].spearman < 0
    assert by_pair["attention", "erasure"].words == 2


def test_a_trained_model_is_asked_and_answers_for_every_word(trained):
    translator = saccade.load(trained, engine="torch")
    found = attribute(translator, "January 5, 2021", "5. Januar 2021", steps=8)
    for method in ("attention", "gradient_input", "integrated_gradients", "erasure"):
        values = getattr(found, method)
        assert values.shape == (3, 3)
        assert np.isfinite(values).all()
    assert len(measure(translator, ["11 May 1999", ""], ["11. Mai 1999", ""])) == 6
    with pytest.raises(SaccadeError, match="nothing to attribute"):
        attribute(translator, "", "x")
