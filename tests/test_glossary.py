"""A term of a glossary has its one translation, whatever the model would write."""

import random
from pathlib import Path

import pytest
from conftest import Command
from hypothesis import given, settings
from hypothesis import strategies as st
from test_placeholders import untrained

import saccade
from saccade import SaccadeError
from saccade.text.alignment import Piece
from saccade.text.glossary import Glossary
from saccade.text.placeholders import Protection
from saccade.text.placing import mark, place
from saccade.translator import Translation, Translator

TERMS = {"house": "Gebäude", "tree house": "Baumhaus", "US": "USA", "Max": "Moritz", "房子": "building", "c++": "C++"}


@pytest.fixture(scope="module")
def random_attention() -> Translator:
    return untrained("transformer pre-norm", "search.max_length_factor=0.5")


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("a house", ["Gebäude"]),
        ("House, HOUSE and house", ["Gebäude", "GEBÄUDE", "Gebäude"]),
        ("houses, housekeeping, my_house", []),
        ("the tree  house", ["Baumhaus"]),
        ("treehouse tree-house", ["Gebäude"]),
        ("the US and us, max and Max", ["USA", "Moritz"]),
        ("这个房子很大", ["building"]),
        ("I like C++.", ["C++"]),
        ("https://house.example/house {house} <house>", []),
    ],
)
def test_terms_are_whole_words_in_their_case_the_longest_first(line: str, wanted: list[str]) -> None:
    spans = Protection(glossary=TERMS).find(line)
    assert [span.wanted for span in spans if span.kind == "glossary"] == wanted


def test_what_begins_first_wins_where_terms_overlap() -> None:
    glossary = {"big red": "A", "red house": "B", "red": "C"}
    found = [span.wanted for span in Protection(glossary=glossary).find("big red house, red house, red")]
    assert found == ["A", "B", "C"]


SOURCES = ["house", "House", "tree house", "US", "us", "房子", "and", "{x}", "42", "old,"]
WRITTEN = ["Haus", "Gebäude", "USA", "USA-Haus", "Baum", "{x}", "building", "42", "-", ","]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(SOURCES), max_size=8), st.lists(st.sampled_from(WRITTEN), max_size=8), st.booleans())
def test_every_term_yields_its_translation(
    random_attention: Translator, source: list[str], written: list[str], looks: bool
) -> None:
    line, text = " ".join(source), " ".join(written)
    protection = Protection(glossary=TERMS)
    marked = mark(line, protection)
    blind = not looks or not line or not text
    translation = Translation(line, text, 0.0, []) if blind else random_attention.forced(line, text)
    placed, _ = place(marked, text, [Piece(translation, (0, len(line)), (0, len(text)))], protection)
    for span in marked.words:
        same = [other for other in marked.words if other.wanted == span.wanted]
        assert placed.count(span.wanted) >= len(same)
    assert protection.losses(line, marked.spans, placed) == []


def test_untrained_models_honour_it_too(random_attention: Translator) -> None:
    chance = random.Random(2)
    lines = [" ".join(chance.choices(["a", "house", "tree house", "US", "of", "big"], k=6)) for _ in range(40)]
    for line, translation in zip(lines, random_attention.translate(lines, glossary=TERMS), strict=True):
        houses = line.count("house") - line.count("tree house")
        assert translation.text.count("Baumhaus") >= line.count("tree house")
        assert translation.text.count("Gebäude") >= houses
        assert translation.text.count("USA") >= line.count("US")


def test_what_the_model_wrote_for_the_term_makes_room(tmp_path: Path, tiny: list[str]) -> None:
    """A model that copies: the word it looks at while it copies the term is the one replaced."""
    words = [f"{c}{v}{c}" for c in "bdfgklmnprst" for v in "aeiou"]
    chance = random.Random(1)
    rows = [" ".join(chance.sample(words, 4)) for _ in range(3000)]
    (tmp_path / "train.tsv").write_text("".join(f"{row}\t{row.upper()}\n" for row in rows))
    translator = saccade.train(
        tmp_path / "train.tsv",
        *(s for s in tiny if not s.startswith(("model", "data.b"))),
        *("tokenizer.kind=words", "model.family=rnn", "model.wiring=bahdanau", "model.width=48", "model.embedding=32"),
        *("training.max_steps=250", "training.batch_tokens=1024", "training.learning_rate=0.01", "model.dropout=0"),
        *("training.validate_every=250", "training.average=1"),
        out=tmp_path / "run",
        quiet=True,
    )
    right = 0
    for row in rows[:40]:
        a, b, c, d = row.split()
        right += (
            translator.translate(row, glossary={b: "Foo bar"}).text == f"{a.upper()} Foo bar {c.upper()} {d.upper()}"
        )
    assert right >= 32


def test_the_command_line_takes_a_file(trained: Path, command: Command, tmp_path: Path) -> None:
    (tmp_path / "terms.tsv").write_text("seventeen\tSiebzehn (17)\n\nmarch\tLenz\n", encoding="utf-8")
    done = command(
        "translate", trained, "--glossary", tmp_path / "terms.tsv", stdin=b"seventeen\nMarch and march\none\n"
    )
    assert done.status == 0
    lines = done.out.splitlines()
    assert "Siebzehn (17)" in lines[0]
    assert lines[1].count("Lenz") == 2
    assert "Lenz" not in lines[2]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("one eins\n", "line 1: 'one eins' is not `source term<TAB>target term`"),
        ("one\teins\n\nb\t \n", "line 3"),
        ("a\tb\tc\n", "line 1"),
        ("a  b\tc\na b\td\n", "line 2: 'a b' is 'c' above and 'd' here"),
        ("one\teins\none\tein\n", "line 2: 'one' is 'eins' above and 'ein' here; keep one of them"),
        ("\n", "a glossary without a term"),
    ],
)
def test_a_glossary_that_is_wrong_is_refused_by_its_line(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "terms.tsv").write_text(text)
    with pytest.raises(SaccadeError) as error:
        Glossary.read(tmp_path / "terms.tsv")
    assert said in str(error.value)
    assert "terms.tsv" in str(error.value)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("a House here", {"glossary": TERMS, "banned": ["Gebäude"]}),
        ("at Max here", {"terms": ["Max"], "banned": ["Max"]}),
    ],
)
def test_a_term_that_is_banned_is_refused_where_it_would_be_written(line: str, told: dict[str, object]) -> None:
    translator = untrained("transformer pre-norm")
    with pytest.raises(SaccadeError, match=r"line 2: its translation must hold .* search\.banned forbids"):
        translator.translate(["none", line], **told)
    assert translator.translate("none", **told).text


def test_blank_terms_are_refused(trained: Path) -> None:
    with pytest.raises(SaccadeError, match="neither side can be blank"):
        saccade.load(trained).translate("one", glossary={"one": " "})


def test_phrases_that_must_appear_are_there_for_a_search_that_takes_them() -> None:
    marked = mark("The <b>house</b> of {x}, 42", Protection(glossary=TERMS))
    assert marked.phrases == ["Gebäude", "{x}"]


@pytest.mark.parametrize("target", ["{page}", "<b>Seite</b>", "www.a.de", "ftp://a.b", "me@a.de", "%s"])
def test_variables_and_addresses_keep_their_case(target: str) -> None:
    for line in ("THE PAGE", "Page one"):
        (span,) = Protection([], glossary={"page": target}).find(line)
        assert span.wanted == target
