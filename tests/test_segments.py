"""Long text is split, translated and joined as it was; nothing is cut off silently."""

import re
from pathlib import Path

import pytest
from conftest import Command
from hypothesis import given, settings
from hypothesis import strategies as st
from test_placeholders import untrained

import saccade
from saccade import SaccadeError
from saccade.data.tokenizers import Tokenizer
from saccade.text.segments import Limits, segments, space_between
from saccade.translator import Translator

BYTES = Tokenizer.train([], "bytes", 300)
WIDE = Limits(10_000, None)


def cut(text: str, pieces: int = 10_000, language: str = "en", always: bool = True) -> list[str]:
    return [text[a:b] for a, b in segments(text, BYTES, Limits(pieces, None), language, always)]


@pytest.mark.parametrize(
    ("language", "text", "sentences"),
    [
        ("en", "Mr. Smith came.  He left!\tWhy?", ["Mr. Smith came.", "He left!", "Why?"]),
        ("de", "Am 3. Mai kam Dr. Müller. Er ging.", ["Am 3. Mai kam Dr. Müller.", "Er ging."]),
        ("zh", "今天天气很好。我们去公园吧！你呢？", ["今天天气很好。", "我们去公园吧！", "你呢？"]),
        ("ja", "今日は良い天気です。行きましょう！", ["今日は良い天気です。", "行きましょう！"]),
        ("en", "One.\n\n  Two two\r\nThree. ", ["One.", "Two two", "Three."]),
        ("no language at all", "One two. Three four.", ["One two.", "Three four."]),
        ("en", " \n ", []),
        ("en", "a \ud800. B c.", ["a \ud800.", "B c."]),
    ],
)
def test_sentences_are_found(language: str, text: str, sentences: list[str]) -> None:
    assert cut(text, language=language) == sentences


def test_a_splitter_that_gives_up_leaves_one_sentence_to_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cut("Ab\u2028. Cd.") == ["Ab\u2028.", "Cd."]
    monkeypatch.setattr("saccade.text.segments._WHITE", re.compile("never"))  # what keeps the library from panicking
    assert cut("B\u2028. Cd.") == ["B\u2028. Cd."]


def test_a_line_that_fits_is_not_touched() -> None:
    assert cut("One. Two.", pieces=9, always=False) == ["One. Two."]
    assert cut("One. Two.", pieces=8, always=False) == ["One.", "Two."]
    assert cut("One. Two.\nThree.", pieces=9, always=False) == ["One. Two.", "Three."]
    assert [*segments("One. Two.", BYTES, Limits(100, 8), "en")] == [(0, 4), (5, 9)], (
        "longer than any it was trained on"
    )


def test_a_long_sentence_is_cut_at_commas_then_spaces_then_characters() -> None:
    assert cut("one two three, four five, six", pieces=20) == ["one two three,", "four five, six"]
    assert cut("one two three four", pieces=10) == ["one two", "three four"]
    assert cut("一二三四五，六七八九十", pieces=21, language="zh") == ["一二三四五，", "六七八九十"]
    assert cut("一二三四五六七", pieces=9, language="zh") == ["一二三", "四五六", "七"]


def test_a_quarter_of_a_megabyte_without_a_full_stop_is_cut_in_seconds() -> None:
    text = "word, word word " * 16_384
    found = segments(text, BYTES, Limits(1024, None), "en")
    assert len(found) >= 256
    assert sum(end - start for start, end in found) > len(text) * 0.99


def test_what_cannot_be_split_is_refused_by_name() -> None:
    with pytest.raises(SaccadeError, match=r"line 7: a sentence of 50 characters .* no place to split it: “xxx"):
        segments("x" * 50, BYTES, Limits(20, None), "en", where="line 7")


def test_a_placeholder_is_never_cut() -> None:
    text = "Go to https://a.b/Is.It?So. {a. B c}. End"
    whole = [(6, 27), (28, 36)]
    for pieces in (26, 40, 1000):
        for start, end in segments(text, BYTES, Limits(pieces, None), "en", always=True, whole=whole):
            assert not any(a < place < b for a, b in whole for place in (start, end))


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet='aB .!?,。，一二\n\r\t \u2028é👍()"”1', max_size=80), st.integers(4, 40), st.booleans())
def test_nothing_but_white_space_stands_between_segments(text: str, pieces: int, always: bool) -> None:
    try:
        found = segments(text, BYTES, Limits(pieces, None), "en", always)
    except SaccadeError:
        return
    position = 0
    for start, end in found:
        assert not text[position:start].strip()
        assert text[start:end] == text[start:end].strip() != ""
        assert len(BYTES.encode(text[start:end])) <= pieces
        position = end
    assert not text[position:].strip()


def test_sentences_of_a_script_without_spaces_get_one_where_the_other_script_needs_it() -> None:
    assert space_between("Hello.", "How") == " "
    assert space_between("你好。", "你") == ""
    assert space_between("Hello.", "你") == ""


@pytest.mark.parametrize(
    "text", ["One. Two.\n\n\n  Three.\t Four! \n", "  Ein Satz.  Noch  einer.", "\r\n one\r\n\r\ntwo"]
)
def test_a_text_comes_back_with_its_own_spaces_and_blank_lines(trained: Path, text: str) -> None:
    translator = saccade.load(trained)
    made = translator.translate(text, split="always", beam=1)
    said = [part.text.strip() for part in made.parts]
    for part in made.parts:
        assert "\n" not in part.source
    between = re.split("|".join(map(re.escape, sorted(set(said), key=len, reverse=True))), made.text)
    cores = [part.source for part in made.parts]
    assert between == re.split("|".join(map(re.escape, sorted(cores, key=len, reverse=True))), text)
    assert f"split into {len(said)}" in made.notes
    assert made.score == pytest.approx(sum(part.score for part in made.parts))
    assert said == [t.text.strip() for t in translator.stream(cores, beam=1)]


def test_a_text_longer_than_the_positions_of_a_model_is_translated_whole() -> None:
    translator = untrained("transformer learned positions", "search.max_length_factor=0.2", "search.max_length_extra=1")
    assert translator.longest == 40
    text = "This is one of many sentences. " * 6
    made = translator.translate(text)
    assert len(made.parts) == 6
    assert "".join(part.source for part in made.parts) == "This is one of many sentences." * 6
    assert made.notes == ["split into 6"]
    with pytest.raises(SaccadeError, match=r"line 2: a sentence of .* pieces, more than the 39 taken"):
        translator.translate(["", text], split="never")
    with pytest.raises(SaccadeError, match=r"line 3: .* no place to split it"):
        translator.translate(["", "a", "x" * 41])


@pytest.mark.parametrize("name", ["transformer learned positions", "convs2s"])
def test_a_translation_that_the_positions_had_no_room_to_end_says_so(name: str) -> None:
    room = ["model.max_positions=40"]
    translator = untrained(name, *room, "search.max_length_factor=9")
    lines = ["seventeen euros", "a", "something longer than that, by far"]
    full = [len(made.tokens) == 39 for made in translator.stream(lines, guard=False)]
    assert any(full), "these models do not know when to end"
    said = [made.notes != [] for made in translator.translate(lines, protect=[], guard=False)]
    assert said == full
    short = translator.translate(lines, protect=[], guard=False, max_length_factor=0.1, max_length_extra=1)
    assert [made.notes for made in short] == [[]] * 3


def test_tags_may_go_over_several_sentences(trained: Path) -> None:
    made = saccade.load(trained).translate("<p>March 5. <b>May 6. June 7.</b></p>", split="always", beam=1)
    tags = re.findall("<[^>]+>", made.text)
    assert tags == ["<p>", "<b>", "</b>", "</p>"]
    assert made.text.startswith("<p>")
    assert made.text.endswith("</p>")


def test_the_command_line_splits_when_it_is_told(trained: Path, command: Command) -> None:
    text = b"March 5. May 6.\n"
    whole, split = (
        command("translate", trained, "--beam", 1, "--split", how, stdin=text).out for how in ("auto", "always")
    )
    translator = saccade.load(trained)
    assert whole == translator.translate("March 5. May 6.", beam=1).text + "\n"
    assert split == translator.translate("March 5. May 6.", beam=1, split="always").text + "\n"
    refused = command("translate", trained, "--split", "often", stdin=text)
    assert refused.status == 2
    assert "search.split='often'" in refused.err


def test_long_lines_of_a_file_are_translated_whole(trained: Path, command: Command) -> None:
    """More characters than any sentence that cleaning would keep for training."""
    line = "March 5, 2021. " * 150
    done = command("translate", trained, "--beam", 1, stdin=f"seventeen\n{line}\nseven\n".encode())
    assert done.status == 0
    rows = done.out.splitlines()
    assert len(rows) == 3
    assert rows[1].count("2021") == 150


def test_unsplit_limits_are_those_of_the_translator(random_translator: Translator) -> None:
    assert random_translator.translate("x" * 2048, max_length_factor=0.01, max_length_extra=1).parts == []


@pytest.fixture
def random_translator() -> Translator:
    return untrained("rnn cho", "data.cleaning.enabled=false")
