import json
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from saccade.data import subword_dropout
from saccade.data.subword_dropout import BPEDropout
from saccade.data.tokenizers import (
    BOS,
    EOS,
    KINDS,
    PAD,
    UNK,
    Tokenizer,
    Tokenizers,
)
from saccade.data.vocabulary import share_letters, vocabulary_for
from saccade.errors import SaccadeError

ENGLISH = "the a small house houses is was near old river rivers in green garden, don't 1984 and we walk walking slowly"
GERMAN = (
    "das ein kleines Haus Häuser ist war nahe am alten Fluss Flüsse im grünen Garten, geht's 1984 und wir gehen langsam"
)
NASTY = [
    "",
    " ",
    "  two  spaces   three ",
    "<pad>",
    "<bos> <eos><eos> <unk>",
    " <unk>",
    "ĠĠ",
    "▁▁Haus",
    "<0xC3>",
    "\u00a0no\u00a0break\u00a0",
    "\t\u3000\u2028\u0085\x1c!\x1d!\x00\ufeff",
    "👩‍💻❤️🇩🇪",
    "e\u0301a\u0303\u0301 \u0301",
    "中文没有空格，是吗？",
    "שלום עולם",
    "می‌خواهم",
    "don't l'homme ’tis '' 12,5%",
    "\U0010ffff\ufffd𐍈",
    "x" * 300,
]


def corpus(words: str, lines: int, seed: int = 0) -> list[str]:
    random = Random(seed)
    choices = words.split()
    return [" ".join(random.choices(choices, k=random.randint(1, 12))) + "." for _ in range(lines)]


LINES = corpus(ENGLISH, 300) + corpus(GERMAN, 300)
TRAINED = {kind: Tokenizer.train(LINES, kind, 400) for kind in KINDS}
each_kind = pytest.mark.parametrize("kind", KINDS)

any_line = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r"), max_size=30)
difficult_line = st.lists(any_line | st.sampled_from([*NASTY, *LINES[:50]]), max_size=4).map("".join)


# Text and back


@each_kind
@settings(max_examples=150, deadline=None)
@given(text=difficult_line)
def test_decoding_gives_back_the_text_exactly(kind: str, text: str) -> None:
    tokenizer = TRAINED[kind]
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert all(UNK < id < tokenizer.size for id in ids)


@each_kind
@settings(max_examples=100, deadline=None)
@given(text=difficult_line)
def test_offsets_cut_the_text_into_what_each_piece_says(kind: str, text: str) -> None:
    tokenizer = TRAINED[kind]
    ids = tokenizer.encode(text)
    offsets = tokenizer.offsets(ids)
    assert len(offsets) == len(ids)
    assert "".join(text[start:end] for start, end in offsets) == text
    for (start, end), piece in zip(offsets, tokenizer.pieces(ids), strict=True):
        if not piece.startswith("<0x"):
            assert text[start:end].replace(" ", "▁") in piece


@each_kind
def test_difficult_texts_come_back(kind: str) -> None:
    tokenizer = TRAINED[kind]
    assert [tokenizer.decode(ids) for ids in tokenizer.encode_batch(NASTY)] == NASTY


@each_kind
def test_a_batch_gives_what_single_texts_give(kind: str) -> None:
    tokenizer = TRAINED[kind]
    texts = NASTY + LINES[:20]
    assert tokenizer.encode_batch(texts) == [tokenizer.encode(text) for text in texts]


@each_kind
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_any_ids_decode_without_an_exception(kind: str, data: st.DataObject) -> None:
    tokenizer = TRAINED[kind]
    ids = data.draw(st.lists(st.integers(0, tokenizer.size - 1), max_size=20))
    tokenizer.decode(ids).encode("utf-8")
    assert len(tokenizer.pieces(ids)) == len(ids) == len(tokenizer.words(ids))
    assert max(tokenizer.words(ids), default=-1) < len(tokenizer.word_texts(ids))


def test_bytes_that_form_no_character_become_the_replacement_character() -> None:
    tokenizer = TRAINED["bytes"]
    first, _ = tokenizer.encode("é")
    assert tokenizer.decode([*tokenizer.encode("a"), first, *tokenizer.encode("b")]) == "a\ufffdb"


def test_special_ids_are_skipped_in_the_text() -> None:
    tokenizer = TRAINED["bpe"]
    assert tokenizer.decode([BOS, *tokenizer.encode(" a house"), EOS, PAD, PAD]) == " a house"


def test_a_lone_surrogate_becomes_the_replacement_character() -> None:
    tokenizer = TRAINED["bpe"]
    assert tokenizer.decode(tokenizer.encode("a\ud800b")) == "a\ufffdb"
    assert tokenizer.decode(tokenizer.encode_batch(["a\ud800b"])[0]) == "a\ufffdb"
    assert tokenizer.decode(tokenizer.sample("a\ud800b", 0.5, 1)) == "a\ufffdb"
    assert Tokenizer.train(["a\ud800b"], "bpe", 300).size == 260


# Vocabularies


@each_kind
def test_specials_have_the_first_ids_and_the_size_is_bounded(kind: str) -> None:
    tokenizer = TRAINED[kind]
    assert tokenizer.pieces([PAD, BOS, EOS, UNK]) == ["<pad>", "<bos>", "<eos>", "<unk>"]
    assert 260 <= tokenizer.size <= 400
    assert len(set(tokenizer.pieces(range(tokenizer.size)))) == tokenizer.size


@each_kind
def test_the_same_lines_give_the_same_vocabulary(kind: str, tmp_path: Path) -> None:
    lines = ", ".join(map(repr, LINES))
    code = f"from saccade.data.tokenizers import Tokenizer; Tokenizer.train([{lines}], {kind!r}, 400).save('there')"
    subprocess.run(
        [sys.executable, "-c", code], check=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": os.getcwd()}
    )
    TRAINED[kind].save(tmp_path / "here")
    assert (tmp_path / "there").read_text() == (tmp_path / "here").read_text()


@each_kind
def test_empty_text_gives_the_bytes_alone(kind: str) -> None:
    for lines in ([], ["", ""]):
        tokenizer = Tokenizer.train(lines, kind, 300)
        assert tokenizer.size == 260
        assert tokenizer.decode(tokenizer.encode("Haus")) == "Haus"


def test_specials_in_the_training_text_stay_text() -> None:
    for kind in KINDS:
        tokenizer = Tokenizer.train(["<eos> <pad><eos>"] * 50, kind, 400)
        assert EOS not in tokenizer.encode("<eos>")
        assert tokenizer.decode(tokenizer.encode("<eos><pad>")) == "<eos><pad>"


def test_frequent_words_are_one_piece() -> None:
    for kind in ("bpe", "unigram", "words"):
        assert TRAINED[kind].pieces(TRAINED[kind].encode("house river")) == ["▁house", "▁river"]


def test_unigram_finds_the_likeliest_pieces() -> None:
    tokenizer = Tokenizer.train(["ab cd abcd ."] * 100 + ["xy"], "unigram", 300)
    pieces = tokenizer.pieces(tokenizer.encode("ab cd abcd . xy"))
    assert pieces[:4] == ["▁ab", "▁cd", "▁abcd", "▁."]


def test_digits_go_one_by_one() -> None:
    tokenizer = TRAINED["bpe"]
    assert tokenizer.pieces(tokenizer.encode("1984")) == ["▁1", "9", "8", "4"]


def test_unknown_words_and_rare_characters_are_spelled_in_bytes() -> None:
    words, characters = TRAINED["words"], TRAINED["characters"]
    assert words.pieces(words.encode("house Maß")) == ["▁house", "▁", "M", "a", "<0xC3>", "<0x9F>"]
    assert characters.pieces(characters.encode("ä 中")) == ["ä", "▁", "<0xE4>", "<0xB8>", "<0xAD>"]


def test_text_without_spaces_is_learned_in_seconds() -> None:
    random = Random(1)
    signs = [chr(0x4E00 + int(random.paretovariate(0.6)) % 3000) for _ in range(20_000)]
    lines = ["".join(random.choices(signs, k=random.randint(20, 60))) + "。" for _ in range(2000)]
    for kind in ("bpe", "unigram"):
        start = time.monotonic()
        tokenizer = Tokenizer.train(lines, kind, 2000)
        assert time.monotonic() - start < 15
        assert tokenizer.size == 2000
        assert [tokenizer.decode(ids) for ids in tokenizer.encode_batch(lines)] == lines
    tokenizer = Tokenizer.train(lines, "bpe", 2000)
    assert tokenizer.decode(tokenizer.sample(lines[0], 0.1, 1)) == lines[0]


def test_a_vocabulary_without_room_for_the_bytes_is_refused() -> None:
    with pytest.raises(SaccadeError, match=r"tokenizer\.vocabulary=200 is too small: .* make 260; ask for 300 or more"):
        Tokenizer.train(LINES, "bpe", 200)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(SaccadeError, match=r"tokenizer\.kind='wordpiece' is not known; use bpe, unigram, words"):
        Tokenizer.train(LINES, "wordpiece", 400)


# Words


@each_kind
@settings(max_examples=100, deadline=None)
@given(text=difficult_line)
def test_words_are_what_whitespace_separates(kind: str, text: str) -> None:
    tokenizer = TRAINED[kind]
    ids = tokenizer.encode(text)
    numbers = tokenizer.words([*ids, EOS])
    assert numbers == sorted(numbers)
    if text.split():
        assert tokenizer.word_texts([*ids, EOS]) == [*text.split(), "<eos>"]
        assert numbers[-1] == len(text.split())


def test_pieces_of_a_word_share_its_number() -> None:
    tokenizer = TRAINED["bytes"]
    ids = [BOS, *tokenizer.encode("ab, é "), EOS]
    assert tokenizer.words(ids) == [0, 1, 1, 1, 2, 2, 2, 2, 3]
    assert tokenizer.word_texts(ids) == ["<bos>", "ab,", "é", "<eos>"]


# BPE dropout


@settings(max_examples=150, deadline=None)
@given(text=difficult_line, rate=st.floats(0, 1), seed=st.integers() | st.tuples(st.integers(), st.integers()))
def test_dropout_never_changes_the_text(text: str, rate: float, seed: int | tuple[int, ...]) -> None:
    tokenizer = TRAINED["bpe"]
    assert tokenizer.decode(tokenizer.sample(text, rate, seed)) == text


@settings(max_examples=150, deadline=None)
@given(text=difficult_line)
def test_dropout_of_nothing_is_plain_encoding(text: str) -> None:
    tokenizer = TRAINED["bpe"]
    ours = BPEDropout(tokenizer._symbols, tokenizer._merges, 0.0)
    assert ours.sample(text, 1) == tokenizer.encode(text) == tokenizer.sample(text, 0.0, 1)


def test_dropout_of_everything_gives_bytes() -> None:
    text = " ".join(LINES[:10])
    assert len(TRAINED["bpe"].sample(text, 1.0, 1)) == len(text.encode()) + 1


def test_dropout_depends_on_the_seed_and_on_nothing_else() -> None:
    text = LINES[0] + " " + LINES[1]
    tokenizer, fresh = TRAINED["bpe"], Tokenizer.train(LINES, "bpe", 400)
    for line in LINES:
        tokenizer.sample(line, 0.3, 5)
    seeds = [(1, epoch, example) for epoch in range(5) for example in range(5)]
    samples = [tokenizer.sample(text, 0.3, seed) for seed in seeds]
    assert samples == [fresh.sample(text, 0.3, seed) for seed in reversed(seeds)][::-1]
    assert len({tuple(sample) for sample in samples}) == len(seeds)


def test_merges_are_skipped_at_the_rate_asked_for() -> None:
    # One possible merge a word: it must be missing in three of ten words, whatever the words and the seeds.
    dropout = BPEDropout(lambda text: [[0, 1]], {(0, 1): (0, 2)}, 0.3)
    merged = sum(dropout.sample(f"word{number}", number) == [2] for number in range(4000))
    assert merged / 4000 == pytest.approx(0.7, abs=0.03)


def test_a_skipped_merge_may_be_done_at_a_later_step() -> None:
    # a b c with the merges bc, then ab: "ab c" arises only where bc was skipped at the first step.
    dropout = BPEDropout(lambda text: [[0, 1, 2]], {(1, 2): (0, 3), (0, 1): (1, 4)}, 0.5)
    drawn = [tuple(dropout.sample(f"word{number}", number)) for number in range(4000)]
    assert drawn.count((0, 3)) / 4000 == pytest.approx(1 / 2, abs=0.03)
    assert drawn.count((4, 2)) / 4000 == pytest.approx(1 / 4, abs=0.03)
    assert drawn.count((0, 1, 2)) / 4000 == pytest.approx(1 / 4, abs=0.03)


def test_dropout_remembers_a_bounded_number_of_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subword_dropout, "REMEMBERED_WORDS", 100)
    dropout = BPEDropout(lambda text: [[0, 1]], {(0, 1): (0, 2)}, 0.5)
    first = [dropout.sample(f"{number}", number) for number in range(10)]
    for number in range(1000):
        dropout.sample(f"{number}", number)
    assert len(dropout._recent) + len(dropout._old) <= 200
    assert [dropout.sample(f"{number}", number) for number in range(10)] == first


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "bpe"])
def test_dropout_is_refused_without_merges(kind: str) -> None:
    with pytest.raises(
        SaccadeError, match=rf"training\.subword_dropout=0\.1 needs tokenizer\.kind=bpe, not {kind}; set"
    ):
        TRAINED[kind].sample("house", 0.1, 1)


# Files and processes


@each_kind
def test_a_saved_tokenizer_is_the_same_after_loading(kind: str, tmp_path: Path) -> None:
    TRAINED[kind].save(tmp_path / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert (loaded.kind, loaded.size) == (kind, TRAINED[kind].size)
    assert loaded.encode_batch(NASTY + LINES) == TRAINED[kind].encode_batch(NASTY + LINES)
    assert os.listdir(tmp_path) == ["tokenizer.json"]


@each_kind
def test_the_file_works_in_the_library_alone(kind: str, tmp_path: Path) -> None:
    TRAINED[kind].save(tmp_path / "tokenizer.json")
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in NASTY + LINES[:20]:
        assert library.encode(text).ids == TRAINED[kind].encode(text)
        assert library.decode(library.encode(text).ids) == text


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    TRAINED["bpe"].save(path)
    path.write_text(path.read_text()[:1000])
    with pytest.raises(
        SaccadeError, match=r"tokenizer\.json: not a tokenizer, or a part of one: .*; copy the file again"
    ):
        Tokenizer.load(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SaccadeError, match=r"tokenizer\.json: not a tokenizer"):
        Tokenizer.load(path)


def test_a_foreign_tokenizer_is_named(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    models = tokenizers.models
    foreign = [models.WordLevel({"<unk>": 0}, "<unk>"), models.BPE({"a": 0}, []), models.Unigram([("a", 0.0)])]
    for model in foreign:
        tokenizers.Tokenizer(model).save(str(path))
        with pytest.raises(SaccadeError, match=r"tokenizer\.json: a tokenizer, but not one that Saccade wrote"):
            Tokenizer.load(path)
    with_added = json.loads(TRAINED["bpe"]._library.to_str())
    token = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    with_added["added_tokens"] = [{"id": EOS, "content": "<eos>", **token}]
    path.write_text(json.dumps(with_added))
    with pytest.raises(SaccadeError, match="not one that Saccade wrote"):
        Tokenizer.load(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SaccadeError, match=r"none\.json: cannot read the tokenizer: No such file"):
        Tokenizer.load(tmp_path / "none.json")


def test_both_sides_are_saved_and_loaded(tmp_path: Path) -> None:
    both = Tokenizers(TRAINED["bpe"], TRAINED["words"])
    assert not both.joint
    both.save(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["tokenizer.source.json", "tokenizer.target.json"]
    loaded = Tokenizers.load(tmp_path)
    assert (loaded.source.kind, loaded.target.kind, loaded.joint) == ("bpe", "words", False)


def test_a_joint_tokenizer_is_one_file_and_one_object(tmp_path: Path) -> None:
    Tokenizers(TRAINED["bpe"], TRAINED["words"]).save(tmp_path)
    Tokenizers(TRAINED["bpe"], TRAINED["bpe"]).save(tmp_path)
    assert os.listdir(tmp_path) == ["tokenizer.json"]
    assert Tokenizers.load(tmp_path).joint


def test_a_folder_without_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(SaccadeError, match=r"no tokenizer here \(tokenizer\.json\); is this the folder of a model\?"):
        Tokenizers.load(tmp_path)
    TRAINED["bpe"].save(tmp_path / "tokenizer.source.json")
    with pytest.raises(SaccadeError, match=r"tokenizer\.target\.json: cannot read the tokenizer"):
        Tokenizers.load(tmp_path)


def test_a_tokenizer_can_be_sent_to_another_process() -> None:
    tokenizer = TRAINED["bpe"]
    tokenizer.sample(LINES[0], 0.2, 1)
    sent = pickle.loads(pickle.dumps(tokenizer))
    assert sent.encode(LINES[0]) == tokenizer.encode(LINES[0])
    assert sent.sample(LINES[1], 0.2, 7) == tokenizer.sample(LINES[1], 0.2, 7)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_training_is_silent_and_forking_brings_no_warning() -> None:
    code = (
        "import os, warnings; warnings.simplefilter('ignore')\n"
        "from saccade.data.tokenizers import Tokenizer\n"
        "tokenizer = Tokenizer.train(['a b c d'] * 2000, 'bpe', 300)\n"
        "before = tokenizer.encode_batch(['a b'] * 2000)\n"
        "child = os.fork()\n"
        "after = tokenizer.encode_batch(['a b'] * 2000)\n"
        "assert before == after and ('TOKENIZERS_PARALLELISM' in os.environ) == (child == 0)\n"
        "child and os._exit(os.waitpid(child, 0)[1])\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "TOKENIZERS_PARALLELISM"}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=60)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


# Choices


def test_the_vocabulary_grows_with_the_corpus() -> None:
    assert [vocabulary_for(pairs) for pairs in (5_000, 30_000, 200_000, 2_000_000, 10**9)] == [
        2000,
        8000,
        16000,
        32000,
        32000,
    ]
    sizes = [vocabulary_for(pairs) for pairs in range(0, 100_000, 500)]
    assert sizes == sorted(sizes)
    assert sizes[0] >= 300
    assert all(size % 8 == 0 for size in sizes)


def test_letters_are_shared_between_german_and_english_but_not_with_russian() -> None:
    russian = ["мальчик идёт домой с Anna"] * 10
    assert share_letters(corpus(ENGLISH, 100), corpus(GERMAN, 100)) > 0.7
    assert share_letters(corpus(ENGLISH, 100), russian) < 0.3
    assert share_letters(["é"], ["E"]) == 1.0
    assert share_letters(["12"], ["abc"]) == 1.0
    assert share_letters(["ab"], ["bc"]) == 0.5
