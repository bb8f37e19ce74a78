import logging
import os

import pytest
import sacrebleu
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu.metrics import BLEU, CHRF, TER

from saccade.errors import SaccadeError
from saccade.evaluation import Comparison, Score, bleu, compare_systems, score_corpus, tokenizer_for

REFERENCES = [
    "The cat sat on the mat.",
    "A black dog ran across the old bridge.",
    "Nobody knew where the key was hidden.",
    "Two birds sang in the garden, very early.",
    "She wrote a long letter to her sister.",
    "Rain fell on the roof all night.",
] * 5


def worse(sentences):
    """Every second sentence loses its second half."""
    return [" ".join(s.split()[: len(s.split()) // 2]) if i % 2 else s for i, s in enumerate(sentences)]


def by_metric(results):
    return {result.metric: result for result in results}


def test_identical_text_scores_best():
    scores = by_metric(score_corpus(REFERENCES, REFERENCES))
    assert scores["BLEU"].value == pytest.approx(100)
    assert scores["chrF2"].value == pytest.approx(100)
    assert scores["TER"].value == 0


def test_text_with_nothing_in_common_scores_worst():
    scores = by_metric(score_corpus(["aa bb cc dd"], ["xx yy zz ww"]))
    assert [scores[name].value for name in ("BLEU", "chrF2", "TER")] == [0, 0, 100]


def test_bleu_by_hand():
    # Precisions 4/5, 3/4, 2/3, 1/2 and no brevity penalty: (1/5) ** (1/4).
    assert bleu(["a b c d e"], ["a b c d f"]) == pytest.approx(100 * 0.2**0.25)


def test_ter_by_hand():
    (score,) = score_corpus(["a b c x"], ["a b c d"], metrics=["ter"])
    assert score.value == pytest.approx(25)  # one substitution in four words


LINES = st.lists(st.text("ab c.Ä猫", max_size=12), min_size=1, max_size=4)


@given(data=st.data(), tokenize=st.sampled_from(["13a", "intl", "zh", "char"]), lowercase=st.booleans())
@settings(max_examples=40, deadline=None)
def test_scores_are_those_of_sacrebleu(data, tokenize, lowercase):
    references = data.draw(LINES)
    other = data.draw(st.lists(st.text("ab c.", max_size=12), min_size=len(references), max_size=len(references)))
    hypotheses = data.draw(st.lists(st.text("ab c.", max_size=12), min_size=len(references), max_size=len(references)))
    asian = tokenize in ("zh", "char")
    metrics = {
        "bleu": BLEU(tokenize=tokenize, lowercase=lowercase),
        "chrf": CHRF(lowercase=lowercase),
        "chrf++": CHRF(lowercase=lowercase, word_order=2),
        "ter": TER(normalized=asian, asian_support=asian),
    }
    ours = score_corpus(hypotheses, [references, other], metrics=list(metrics), tokenize=tokenize, lowercase=lowercase)
    for score, metric in zip(ours, metrics.values(), strict=True):
        theirs = metric.corpus_score(hypotheses, [references, other])
        assert score == Score(theirs.name, theirs.score, str(metric.get_signature()))


def test_signature_tells_tokenizer_case_references_and_version():
    scores = by_metric(score_corpus(REFERENCES, [REFERENCES, REFERENCES], tokenize="intl", lowercase=True))
    assert scores["BLEU"].signature == (f"nrefs:2|case:lc|eff:no|tok:intl|smooth:exp|version:{sacrebleu.__version__}")
    assert "case:lc" in scores["chrF2"].signature
    assert "case:mixed" in score_corpus(REFERENCES, REFERENCES, metrics=["chrf"])[0].signature


def test_ter_ignores_case_and_says_so():
    (score,) = score_corpus(["THE CAT"], ["the cat"], metrics=["ter"])
    assert score.value == 0
    assert "case:lc" in score.signature


def test_score_prints_with_its_signature_and_becomes_a_dict():
    score = Score("BLEU", 41.0249, "nrefs:1|tok:13a")
    assert str(score) == "BLEU 41.02 (nrefs:1|tok:13a)"
    assert score.to_dict() == {"metric": "BLEU", "value": 41.0249, "signature": "nrefs:1|tok:13a"}


def test_bleu_alone_equals_bleu_among_others():
    hypotheses = worse(REFERENCES)
    assert bleu(hypotheses, REFERENCES) == by_metric(score_corpus(hypotheses, REFERENCES))["BLEU"].value
    assert bleu(["A B C D"], ["a b c d"], lowercase=True) == pytest.approx(100)


def test_a_second_reference_can_only_help_bleu():
    alone = bleu(["a b c d"], ["a b x y"])
    assert bleu(["a b c d"], [["a b x y"], ["a b c d"]]) > alone


def test_chinese_is_scored_by_character():
    (chinese,) = score_corpus(["我喜欢黑色的猫"], ["我喜欢白色的猫"], metrics=["ter"], tokenize=tokenizer_for("zh"))
    assert chinese.value == pytest.approx(100 / 7)  # one character of seven, not one "word" of one
    assert "asian:yes" in chinese.signature
    assert bleu(["我喜欢黑色的猫"], ["我喜欢白色的猫"], tokenize=tokenizer_for("zh")) > 0


@pytest.mark.parametrize(
    ("language", "tokenizer"),
    [
        ("de", "13a"),
        ("pt-BR", "13a"),
        ("zh", "zh"),
        ("zh_Hans_CN", "zh"),
        ("ZH-tw", "zh"),
        ("ja", "char"),
        ("ko_KR", "char"),
        ("th", "char"),
        ("", "13a"),
    ],
)
def test_tokenizer_follows_the_language(language, tokenizer):
    assert tokenizer_for(language) == tokenizer
    assert bleu(["a b c d"], ["a b c d"], tokenize=tokenizer) == pytest.approx(100)


def test_warning_about_split_text_is_silent_only_when_the_caller_says_it_is_split(caplog):
    split = ["the cat sat on the mat ."] * 100
    with caplog.at_level(logging.WARNING, logger="sacrebleu"):
        bleu(split, split, tokenize="none")
        assert not caplog.records
        bleu(split, split, tokenize="13a")
        assert "tokenized period" in caplog.text


def test_a_system_does_not_differ_from_itself():
    for comparison in compare_systems(worse(REFERENCES), worse(REFERENCES), REFERENCES, samples=100):
        assert comparison.difference == 0
        assert comparison.p_value == 1
        assert not comparison.significant


def test_a_clearly_better_system_is_significant():
    comparisons = by_metric(compare_systems(worse(REFERENCES), REFERENCES, REFERENCES, samples=200))
    for comparison in comparisons.values():
        assert comparison.p_value < 0.05
        assert comparison.significant
    assert comparisons["BLEU"].difference > 0
    assert comparisons["TER"].difference < 0


def test_one_changed_word_is_not_significant():
    changed = [REFERENCES[0].replace("cat", "dog"), *REFERENCES[1:]]
    (comparison,) = compare_systems(REFERENCES, changed, REFERENCES, metrics=["bleu"], samples=200)
    assert comparison.difference < 0
    assert not comparison.significant


def test_comparison_agrees_with_the_plain_scores_and_bounds_them():
    hypotheses = worse(REFERENCES)
    mixed = [h if i % 3 else r for i, (h, r) in enumerate(zip(hypotheses, REFERENCES, strict=True))]
    plain = by_metric(score_corpus(hypotheses, REFERENCES))
    better = by_metric(score_corpus(mixed, REFERENCES))
    for comparison in compare_systems(hypotheses, mixed, REFERENCES, samples=200):
        assert comparison.baseline == pytest.approx(plain[comparison.metric].value)
        assert comparison.system == pytest.approx(better[comparison.metric].value)
        assert comparison.difference == comparison.system - comparison.baseline
        assert comparison.low < comparison.system < comparison.high
        assert comparison.baseline_low < comparison.baseline < comparison.baseline_high


def test_comparison_is_the_one_of_sacrebleu(monkeypatch):
    from sacrebleu.significance import PairedTest

    monkeypatch.setenv("SACREBLEU_SEED", "7")
    hypotheses = [r if i % 4 else "The cat sat." for i, r in enumerate(REFERENCES)]
    systems = [("a", hypotheses), ("b", worse(hypotheses))]
    signatures, results = PairedTest(systems, {"bleu": BLEU()}, [REFERENCES], test_type="bs", n_samples=100)()
    (ours,) = compare_systems(hypotheses, worse(hypotheses), REFERENCES, metrics=["bleu"], samples=100, seed=7)
    baseline, system = results["BLEU"]
    assert ours.p_value == system.p_value
    assert (ours.low, ours.high) == pytest.approx((system.mean - system.ci, system.mean + system.ci))
    assert (ours.baseline_low, ours.baseline_high) == pytest.approx(
        (baseline.mean - baseline.ci, baseline.mean + baseline.ci)
    )
    assert ours.signature == str(signatures["BLEU"])


def test_comparison_repeats_for_a_seed_and_leaves_the_environment_alone(monkeypatch):
    monkeypatch.delenv("SACREBLEU_SEED", raising=False)

    def compare(seed):
        return compare_systems(
            worse(REFERENCES), REFERENCES[1:] + REFERENCES[:1], REFERENCES, metrics=["bleu"], samples=100, seed=seed
        )

    first = compare(3)
    assert compare(3) == first
    assert compare(4) != first
    assert "bs:100|seed:3" in first[0].signature
    assert "SACREBLEU_SEED" not in os.environ
    monkeypatch.setenv("SACREBLEU_SEED", "99")
    assert compare(3) == first
    assert os.environ["SACREBLEU_SEED"] == "99"


def test_comparison_prints_both_scores_and_becomes_a_dict():
    comparison = Comparison("BLEU", 30.0, 32.5, 2.5, 31.0, 34.0, 28.5, 31.5, 0.0123, "nrefs:1|bs:1000", 1000)
    assert str(comparison) == "BLEU 30.00 → 32.50 (+2.50, p = 0.0123; nrefs:1|bs:1000)"
    assert comparison.to_dict()["difference"] == 2.5


def check_error(message, call):
    with pytest.raises(SaccadeError) as caught:
        call()
    assert message in str(caught.value)


def test_errors_name_the_value_and_the_remedy():
    two, three = ["a", "b"], ["a", "b", "c"]
    check_error("hypotheses has 2 sentences, the references 3;", lambda: score_corpus(two, three))
    check_error("hypotheses has 2 sentences, reference set 2 3;", lambda: score_corpus(two, [two, three]))
    check_error("system has 3 sentences, the references 2;", lambda: compare_systems(two, three, two))
    check_error("baseline has 3 sentences, the references 2;", lambda: compare_systems(three, two, two))
    check_error("hypotheses is empty: there is nothing to score", lambda: score_corpus([], [[]]))
    check_error("references=[]: expected a list of sentences", lambda: score_corpus([], []))
    check_error("references='a': expected a list of sentences", lambda: score_corpus(["a"], "a"))
    check_error("hypotheses is one string, 'a b'; pass a list", lambda: score_corpus("a b", ["a b"]))
    check_error("hypotheses: sentence 2 is None, not text", lambda: score_corpus(["a", None], two))
    check_error("references[0]: sentence 1 is None, not text", lambda: score_corpus(two, [None, "b"]))
    check_error("references[1] is one string, 'a'", lambda: score_corpus(["a"], [["a"], "a"]))


def test_unknown_names_bring_the_nearest_known_one():
    def score(**options):
        return lambda: score_corpus(["a"], ["a"], **options)

    check_error("metric='blue' is not known; did you mean 'bleu'?", score(metrics=["blue"]))
    check_error("metric='comet' is not known; known: bleu, chrf, chrf++, ter", score(metrics=["comet"]))
    check_error("metrics is empty; choose from bleu", score(metrics=[]))
    check_error("tokenize='13b' is not known; did you mean '13a'?", score(tokenize="13b"))


def test_a_tokenizer_that_needs_an_install_says_which(monkeypatch):
    monkeypatch.setattr("sacrebleu.tokenizers.tokenizer_ja_mecab.MeCab", None)
    check_error("tokenize='ja-mecab' cannot be used:", lambda: bleu(["a"], ["a"], tokenize="ja-mecab"))
    check_error("pip install sacrebleu[ja]", lambda: bleu(["a"], ["a"], tokenize="ja-mecab"))


@pytest.mark.parametrize("seed", [0, -1])
def test_seeds_that_sacrebleu_would_ignore_are_refused(seed):
    check_error(f"seed={seed}:", lambda: compare_systems(["a"], ["a"], ["a"], seed=seed))


def test_too_few_samples_are_refused():
    check_error("samples=39 is too few", lambda: compare_systems(["a"], ["a"], ["a"], samples=39))


def test_one_sentence_is_no_evidence():
    check_error("a paired test of 1 sentence says nothing", lambda: compare_systems(["a b"], ["a c"], ["a d"]))


def test_text_that_is_split_already_is_left_as_it_is():
    split = [f"ein hund rennt {i} ." for i in range(20)]
    whole = [f"Ein Hund rennt {i}." for i in range(20)]
    assert tokenizer_for("de", split) == "none"
    assert tokenizer_for("de", whole) == "13a"
    assert tokenizer_for("de", split[:5]) == "13a", "a few lines say nothing"
    assert tokenizer_for("zh", whole) == "zh"
