"""Corpora: what goes into a file comes out of it, and what is wrong with a file is said in one sentence."""

import bz2
import gzip
import io
import json
import lzma
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from saccade.data.corpora import Corpus, Pair, TextCorpus, open_corpora, read_lines
from saccade.errors import SaccadeError

# One line of text: any character but a line feed; NUL is left out because a file full of it is refused as binary.
ANY = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\0"), max_size=30)
# A carriage return before the line feed belongs to the line end, a byte order mark at the start to the file.
LINE = ANY.map(lambda text: text.rstrip("\r").lstrip("\ufeff"))
CELL = LINE.map(lambda text: text.replace("\t", " ").rstrip("\r"))

EXOTIC = [
    ("שלום עולם", "مرحبا بالعالم"),
    ("你好,世界。", "こんにちは、世界。"),
    ("a\u2028b\x0bc\x0cd\x85e\x1cf", "\u2029 one line \ufeff still"),
    ("  spaces stay  ", "\u00a0\u3000"),
    ("", "👩‍👩‍👧‍👦 e\u0301"),
]


def only(*files: str | Path, **options: str) -> Corpus:
    (corpus,) = open_corpora([str(file) for file in files], **options)
    return corpus


def sides(corpus: Corpus) -> list[tuple[str, str]]:
    return [(pair.source, pair.target) for pair in corpus]


def refusal(*files: str | Path, **options: str) -> str:
    with pytest.raises(SaccadeError) as caught:
        _ = [list(corpus) for corpus in open_corpora([str(file) for file in files], **options)]
    return str(caught.value)


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def put_parquet(path: Path, **columns: object) -> Path:
    pa.parquet.write_table(pa.table(columns), path)
    return path


def put_text(folder: Path, pairs: list[tuple[str, str]], end: str = "\n") -> list[Path]:
    return [
        write(folder / f"train.{language}", "".join(pair[side] + end for pair in pairs))
        for side, language in enumerate(["de", "en"])
    ]


def put_tsv(folder: Path, pairs: list[tuple[str, str]]) -> list[Path]:
    return [write(folder / "train.tsv", "".join(f"{source}\t{target}\n" for source, target in pairs))]


def put_jsonl(folder: Path, pairs: list[tuple[str, str]]) -> list[Path]:
    records = [json.dumps({"source": source, "target": target}) for source, target in pairs]
    return [write(folder / "train.jsonl", "\n".join(records))]


def put_parquet_pairs(folder: Path, pairs: list[tuple[str, str]]) -> list[Path]:
    return [put_parquet(folder / "train.parquet", source=[s for s, _ in pairs], target=[t for _, t in pairs])]


Writer = Callable[[Path, list[tuple[str, str]]], list[Path]]
WRITERS: dict[str, Writer] = {
    "text": put_text,
    "tsv": put_tsv,
    "jsonl": put_jsonl,
    "parquet": put_parquet_pairs,
}


@pytest.mark.parametrize("kind", WRITERS)
@settings(max_examples=60, deadline=None)
@given(data=st.data(), gzipped=st.booleans(), renamed=st.booleans())
def test_any_text_survives_the_round_trip(kind: str, data: st.DataObject, gzipped: bool, renamed: bool) -> None:
    text = {"text": LINE, "tsv": CELL}.get(kind, ANY)
    pairs = data.draw(st.lists(st.tuples(text, text), min_size=1, max_size=6))
    with tempfile.TemporaryDirectory() as folder:
        files = WRITERS[kind](Path(folder), pairs)
        if gzipped:
            for file in files:
                file.write_bytes(gzip.compress(file.read_bytes(), 1))
            if renamed:  # gzip is known by its bytes: the name may say so or not
                files = [file.rename(f"{file}.gz") for file in files]
        corpus = only(*files)
        assert list(corpus) == [Pair(*pair, line) for line, pair in enumerate(pairs, 1)]
        assert sides(corpus) == pairs, "a corpus can be walked again"


@pytest.mark.parametrize("kind", WRITERS)
def test_every_script_and_odd_separator_is_read_as_it_is(kind: str, tmp_path: Path) -> None:
    assert sides(only(*WRITERS[kind](tmp_path, EXOTIC))) == EXOTIC


@given(raw=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=60))
@settings(max_examples=100, deadline=None)
def test_a_file_has_as_many_lines_as_line_feeds_and_an_unfinished_one(raw: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        lines = list(read_lines(write(Path(folder) / "a.txt", raw)))
    raw = raw.removeprefix("\ufeff")
    assert len(lines) == raw.count("\n") + (not raw.endswith("\n") and raw != "")
    assert "\n".join(lines).replace("\r", "") == raw.removesuffix("\n").replace("\r", "")


def test_crlf_byte_order_mark_and_a_missing_last_line_feed_are_accepted(tmp_path: Path) -> None:
    file = write(tmp_path / "a.txt", b"\xef\xbb\xbfeins\r\n\r\nzwei\r\r\n\xef\xbb\xbfdrei")
    assert list(read_lines(file)) == ["eins", "", "zwei\r", "\ufeffdrei"]
    assert list(read_lines(write(tmp_path / "b.txt", b"\xef\xbb\xbf"))) == []
    assert list(read_lines(write(tmp_path / "c.txt", b""))) == []
    assert list(read_lines(write(tmp_path / "d.txt", b"\n\n"))) == ["", ""]


def test_very_long_lines_stream(tmp_path: Path) -> None:
    pairs = [("ä" * 100_000, "b" * 100_000), ("x", "y")]
    for kind, put in WRITERS.items():
        folder = tmp_path / kind
        folder.mkdir()
        assert sides(only(*put(folder, pairs))) == pairs


def test_a_corpus_streams_without_reading_ahead(tmp_path: Path) -> None:
    first = [("a", "b")] * 50_000
    (file,) = put_tsv(tmp_path, first)
    with file.open("ab") as tail:
        tail.write(b"\xff\n")
    assert next(iter(only(file))) == Pair("a", "b", 1)


def test_several_files_become_several_corpora_in_order(tmp_path: Path) -> None:
    de, en = put_text(tmp_path, [("a", "b")])
    (tsv,) = put_tsv(tmp_path, [("c", "d")])
    (parquet,) = put_parquet_pairs(tmp_path, [("e", "f")])
    corpora = open_corpora([str(file) for file in (tsv, de, en, parquet, en, de)])
    assert [corpus.name for corpus in corpora] == [
        "train.tsv",
        "train.de + train.en",
        "train.parquet",
        "train.en + train.de",
    ]
    assert [sides(corpus) for corpus in corpora] == [[("c", "d")], [("a", "b")], [("e", "f")], [("b", "a")]]
    assert open_corpora([]) == []


def test_files_of_the_same_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    for language in ("de", "en"):
        (tmp_path / language).mkdir()
        write(tmp_path / language / "train.txt", "x\n")
    assert only(tmp_path / "de/train.txt", tmp_path / "en/train.txt").name == "de/train.txt + en/train.txt"


READ_STDIN = """
import sys
from saccade.data.corpora import open_corpora
from saccade.errors import SaccadeError
(corpus,) = open_corpora(["-"])
print(corpus.name)
try:
    for time in range(2):
        print([tuple(pair) for pair in corpus])
except SaccadeError as error:
    print(error)
"""


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_standard_input_is_read_once(pack: Callable[[bytes], bytes]) -> None:
    run = subprocess.run(
        [sys.executable, "-c", READ_STDIN], input=pack("ä\tb\r\nc\td".encode()), capture_output=True, check=True
    )
    assert run.stdout.decode().splitlines() == [
        "standard input",
        "[('ä', 'b', 1), ('c', 'd', 2)]",
        "standard input: nothing to read; a pipe can be read only once, a file again and again",
    ]


def test_a_stand_in_for_standard_input_is_read_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\tb\n")))
    assert sides(only("-")) == [("a", "b")]
    assert refusal("-").startswith("standard input: nothing to read")


def test_a_line_of_standard_input_is_there_before_the_next_is_written() -> None:
    code = "from saccade.data.corpora import read_lines\nfor line in read_lines('-'): print(line, flush=True)"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for line in (b"eins\n", b"zwei\n"):
            process.stdin.write(line)
            process.stdin.flush()
            assert process.stdout.readline() == line


def test_standard_input_twice_is_refused() -> None:
    assert refusal("-", "-") == "- is given twice; standard input can be read only once"


def test_a_named_pipe_can_be_a_side(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.de")
    english = write(tmp_path / "a.en", "a\nb\n")
    with subprocess.Popen(["sh", "-c", "printf 'x\\ny\\n' > a.de"], cwd=tmp_path):
        assert sides(only(tmp_path / "a.de", english)) == [("x", "a"), ("y", "b")]


# Named fields


@pytest.mark.parametrize(
    ("record", "options"),
    [
        ({"source": "ein Hund", "target": "a dog"}, {}),
        ({"src": "ein Hund", "tgt": "a dog"}, {"source_field": "src", "target_field": "tgt"}),
        ({"translation": {"de": "ein Hund", "en": "a dog"}, "source": "web"}, {"source": "de", "target": "en"}),
        ({"de": "ein Hund", "en": "a dog", "id": 7}, {"source": "de", "target": "en"}),
    ],
)
def test_the_sides_are_found_under_their_names(
    record: dict[str, object], options: dict[str, str], tmp_path: Path
) -> None:
    jsonl = write(tmp_path / "a.ndjson", json.dumps(record))
    assert sides(only(jsonl, **options)) == [("ein Hund", "a dog")]
    parquet = put_parquet(tmp_path / "a.parquet", **{name: [value] for name, value in record.items()})
    assert sides(only(parquet, **options)) == [("ein Hund", "a dog")]


def test_a_chosen_name_that_is_absent_does_not_find_other_text(tmp_path: Path) -> None:
    record = {"de": "x", "en": "y", "tgt": "z"}
    expected = "no {} 'scr'; it has 'de', 'en', 'tgt'; set data.source_field=NAME"
    jsonl = write(tmp_path / "a.jsonl", json.dumps(record))
    options = {"source": "de", "target": "en", "source_field": "scr", "target_field": "tgt"}
    assert refusal(jsonl, **options) == f"{jsonl}, line 1: {expected.format('field')}"
    parquet = put_parquet(tmp_path / "a.parquet", **{name: [value] for name, value in record.items()})
    assert refusal(parquet, **options) == f"{parquet}: {expected.format('column')}"


def test_a_missing_field_names_the_nearest(tmp_path: Path) -> None:
    jsonl = write(tmp_path / "a.jsonl", '{"source": "a", "target": "b"}\n{"source": "a", "tagret": "b"}\n')
    assert refusal(jsonl) == (
        f"{jsonl}, line 2: no field 'target'; did you mean 'tagret'? Set data.target_field=tagret"
    )
    parquet = put_parquet(tmp_path / "a.parquet", sources=["a"], target=["b"])
    assert refusal(parquet) == (f"{parquet}: no column 'source'; did you mean 'sources'? Set data.source_field=sources")


def test_a_missing_language_names_those_there_are(tmp_path: Path) -> None:
    record = {"translation": {"en": "a", "fr": "b"}}
    expected = "'translation' has 'en', 'fr', not 'de'; set data.source and data.target"
    jsonl = write(tmp_path / "a.jsonl", json.dumps(record))
    assert refusal(jsonl) == f"{jsonl}, line 1: {expected}"
    parquet = put_parquet(tmp_path / "a.parquet", translation=[record["translation"]])
    assert refusal(parquet) == f"{parquet}: {expected}"


# Files that cannot be read


def test_a_missing_file_names_a_similar_one(tmp_path: Path) -> None:
    de, _ = put_text(tmp_path, [("a", "b")])
    missing = tmp_path / "trian.en"
    assert refusal(de, missing) == f"{missing}: there is no such file; did you mean {tmp_path / 'train.en'}?"
    nowhere = tmp_path / "nowhere" / "a.de"
    assert refusal(nowhere, de) == f"{nowhere}: there is no such file; check the name and the folder"
    with pytest.raises(SaccadeError, match="there is no such file"):
        list(read_lines(nowhere))


def test_a_folder_of_text_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path, tmp_path) == (
        f"{tmp_path}: a folder without .parquet, .jsonl or .tsv files; name text files by two patterns, such as "
        f"'{tmp_path}/*.en' '{tmp_path}/*.de'"
    )


def test_an_impossible_name_is_refused() -> None:
    name = "x" * 5000
    assert refusal(name) == f"{name}: cannot be read: File name too long; check the name"


@pytest.fixture
def unprivileged() -> Iterator[None]:
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)  # root may read everything
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.usefixtures("unprivileged")
def test_a_file_without_permission_is_refused() -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = write(Path(folder) / "a.tsv", "a\tb\n")
        file.chmod(0)
        assert refusal(file) == f"{file}: no permission to read it; chmod +r {file} may help"


def test_a_text_file_without_partner_is_refused(tmp_path: Path) -> None:
    de, en = put_text(tmp_path, [("a", "b")])
    (tsv,) = put_tsv(tmp_path, [("a", "b")])
    expected = (
        "no target file after it; text files come in pairs, source then target "
        "(one file with both sides must end in .tsv, .jsonl or .parquet; a language model learns from one file with "
        "model.family=lm, from several with data.monolingual=true)"
    )
    assert refusal(de, en, de) == f"{de}: {expected}"
    assert refusal(de, tsv, en) == f"{de}: {expected}"


def test_csv_and_json_are_refused_with_what_is_read_instead(tmp_path: Path) -> None:
    csv, document = write(tmp_path / "a.csv", "a,b\n"), write(tmp_path / "a.json", "[]")
    assert refusal(csv) == f"{csv}: .csv files are not read; save it as .tsv (source, tab, target)"
    assert refusal(document) == f"{document}: .json files are not read; save it as .jsonl (one object a line)"


def test_text_that_is_not_utf8_names_line_byte_and_command(tmp_path: Path) -> None:
    en = write(tmp_path / "a.en", "one\ntwo\n")
    for pack in (bytes, gzip.compress):
        de = write(tmp_path / "a.de", pack("eins\nschön\n".encode("latin1")))
        assert refusal(de, en) == (
            f"{de}, line 2, byte 4 (0xF6): not UTF-8; if it is Latin-1, convert it with iconv -f latin1 -t utf-8"
        )


def test_binary_files_are_named_for_what_they_are(tmp_path: Path) -> None:
    en = write(tmp_path / "a.en", "one\n")
    parquet = put_parquet(tmp_path / "a.parquet", source=["a"], target=["b"]).read_bytes()
    contents = {
        b"\x00\x01\x02\x03" * 100: "binary, not text; give a text file in UTF-8",
        "eins\n".encode("utf-16"): "UTF-16 text; convert it with iconv -f utf-16 -t utf-8",
        b"PK\x03\x04rest": "a zip archive; unpack it first with unzip",
        lzma.compress(b"eins\n"): "compressed with xz; decompress it first with xz -dk",
        bz2.compress(b"eins\n"): "compressed with bzip2; decompress it first with bunzip2 -k",
        b"\x28\xb5\x2f\xfdrest": "compressed with zstd; decompress it first with zstd -d",
        parquet: "a Parquet file; give it a name that ends in .parquet",
    }
    for content, what in contents.items():
        de = write(tmp_path / "a.de", content)
        assert refusal(de, en) == f"{de}: the file is {what}"


def test_a_stray_nul_is_left_to_cleaning(tmp_path: Path) -> None:
    (tsv,) = put_tsv(tmp_path, [("a\0b", "c")])
    assert sides(only(tsv)) == [("a\0b", "c")]


@pytest.mark.parametrize("kind", ["tsv", "jsonl", "parquet"])
def test_damaged_gzip_is_refused(kind: str, tmp_path: Path) -> None:
    (file,) = WRITERS[kind](tmp_path, [(str(n), str(-n)) for n in range(1000)])
    whole = gzip.compress(file.read_bytes())
    expected = f"{file}: the gzip data is damaged or ends too early; copy or download it again (gzip -t tests a file)"
    middle = len(whole) // 2
    for damaged in (whole[:middle], whole[:-8] + b"\0" * 8, whole[:100] + bytes(50) + whole[150:]):
        write(file, damaged)
        assert refusal(file) == expected


def test_empty_files_are_refused(tmp_path: Path) -> None:
    empty, other = write(tmp_path / "a.de", ""), write(tmp_path / "a.en", "x\n")
    none = write(tmp_path / "b.en", gzip.compress(b""))
    expected = "empty; there is not one pair to read, check how it was made"
    assert refusal(empty, none) == f"{empty} and {none}: {expected}"
    assert refusal(empty, other) == f"{empty} is empty, {other} has 1 lines; check how it was made"
    for suffix in ("tsv", "jsonl"):
        file = write(tmp_path / f"a.{suffix}", "")
        assert refusal(file) == f"{file}: {expected}"
    rows = put_parquet(tmp_path / "a.parquet", source=pa.array([], pa.string()), target=pa.array([], pa.string()))
    assert refusal(rows) == f"{rows}: {expected}"


# Files that do not line up


def parallel(lines: int, seed: int = 3) -> list[tuple[str, str]]:
    rng = np.random.default_rng(seed)
    words = rng.integers(2, 30, lines)
    return [("wort " * n, "word " * max(1, n + rng.integers(-2, 3))) for n in words]


def uneven(folder: Path, sources: list[str], targets: list[str]) -> tuple[str, str]:
    de = write(folder / "a.de", "".join(f"{line}\n" for line in sources))
    en = write(folder / "a.en", "".join(f"{line}\n" for line in targets))
    start = f"source and target differ in length: {de} has {len(sources):,} lines, {en} {len(targets):,}; "
    message = refusal(de, en)
    assert message.startswith(start)
    return message.removeprefix(start), str(en)


@pytest.mark.parametrize("lost", [5, 411, 990])
def test_files_of_different_length_are_counted_and_the_break_is_found(lost: int, tmp_path: Path) -> None:
    sources, targets = map(list, zip(*parallel(1000), strict=True))
    del targets[lost]
    hint, _ = uneven(tmp_path, sources, targets)
    line = int(hint.removeprefix("they may have come apart near line ").split(";")[0])
    assert hint.endswith("; look there for a line too many or too few")
    assert abs(line - (lost + 1)) <= 5


def test_a_file_cut_short_is_recognised(tmp_path: Path) -> None:
    sources, targets = map(list, zip(*parallel(1000), strict=True))
    hint, en = uneven(tmp_path, sources, targets[:900])
    assert hint == f"the lines seem to match until {en} ends, so its end may be missing"


def test_no_place_is_guessed_where_the_files_have_nothing_in_common(tmp_path: Path) -> None:
    sources, _ = map(list, zip(*parallel(1000, seed=1), strict=True))
    _, targets = map(list, zip(*parallel(999, seed=2), strict=True))
    no_telling = "make the files line up, one sentence and its translation on the same line of each"
    assert uneven(tmp_path, sources, targets)[0] == no_telling
    assert uneven(tmp_path, ["a"] * 30, ["b"] * 20)[0] == no_telling
    assert uneven(tmp_path, ["a", "b"], ["c"])[0] == no_telling


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("a\tb\tc", "3 columns, expected source<TAB>target; JSONL can hold text with tabs"),
        ("ab", "no tab, expected source<TAB>target; put one tab between the two"),
        ("", "a blank line, expected source<TAB>target; put one tab between the two"),
    ],
)
def test_a_tsv_line_without_exactly_two_columns_is_refused(line: str, found: str, tmp_path: Path) -> None:
    file = write(tmp_path / "a.tsv", f"x\ty\n{line}\n")
    assert refusal(file) == f"{file}, line 2: {found}"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('{"source": "a"', "not valid JSON (Expecting ',' delimiter: line 1 column 15 (char 14))"),
        ("", "not valid JSON (Expecting value: line 1 column 1 (char 0))"),
        ('["a", "b"]', '["a", "b"] is not an object'),
        ('{"source": "a", "target": 7}', "'target' is 7, not text"),
        ('{"source": null, "target": "b"}', "'source' is null, not text"),
        (
            '{"source": "\\ud83d", "target": "b"}',
            "'source' holds half a character (a lone surrogate, \\ud800 to \\udfff)",
        ),
    ],
)
def test_a_bad_json_line_is_refused(line: str, found: str, tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", f'{{"source": "\\ud83d\\ude00", "target": "y"}}\n{line}\n')
    assert (
        refusal(file)
        == f'{file}, line 2: {found}; each line must be one object such as {{"source": "…", "target": "…"}}'
    )


def test_json_nested_beyond_reason_is_refused(tmp_path: Path) -> None:
    assert ", line 1: not valid JSON (" in refusal(write(tmp_path / "a.jsonl", "[" * 200_000))


# Parquet


def test_parquet_rows_are_counted_across_batches_and_encodings(tmp_path: Path) -> None:
    texts = [f"satz {n}" for n in range(3000)]
    file = put_parquet(
        tmp_path / "a.parquet",
        source=pa.array(texts, pa.large_string()),
        target=pa.array(texts).dictionary_encode(),
    )
    assert list(only(file)) == [Pair(text, text, line) for line, text in enumerate(texts, 1)]


def test_a_file_that_is_not_whole_parquet_is_refused(tmp_path: Path) -> None:
    file = put_parquet(tmp_path / "a.parquet", source=["a"] * 5000, target=["b"] * 5000)
    for content in (b"a\tb\n", file.read_bytes()[:-20], b""):
        write(file, content)
        message = refusal(file)
        assert message.startswith(f"{file}: not a whole Parquet file (")
        assert message.endswith("); copy or write it again")


def test_a_parquet_column_that_holds_no_text_is_refused(tmp_path: Path) -> None:
    file = put_parquet(tmp_path / "a.parquet", source=["a"], target=[7])
    assert refusal(file) == f"{file}: column 'target' holds int64, not text; name another column"
    put_parquet(file, source=["a"] * 2000, target=["b"] * 1500 + [None] * 500)
    assert refusal(file) == (f"{file}, row 1,501: column 'target' is null; remove the row or make it an empty text")
    put_parquet(file, source=pa.array([b"ok", b"sch\xf6n"]).view(pa.string()), target=["a", "b"])
    assert refusal(file) == f"{file}, rows 1 to 2: column 'source' is not UTF-8; write the file again from text"


@pytest.mark.parametrize(
    ("module", "extra", "reference"), [("pyarrow.parquet", "parquet", "a.parquet"), ("datasets", "hub", "hub:a/b")]
)
def test_an_extra_that_is_not_installed_is_named(
    module: str, extra: str, reference: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.parquet", "")
    monkeypatch.setitem(sys.modules, module, None)
    assert refusal(reference) == f"{reference} needs {module.split('.')[0]}: pip install 'saccade[{extra}]'"


# Public datasets


@pytest.mark.parametrize("reference", ["hub:", "hub::train", "hub:a/", "hub:a/b/c/d"])
def test_a_reference_that_names_no_dataset_is_refused(reference: str) -> None:
    assert refusal(reference) == (
        f"{reference!r} names no dataset; write hub:OWNER/NAME or hub:OWNER/NAME/CONFIG:SPLIT"
    )


@pytest.fixture
def dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A dataset as it stands on the hub, two configurations of two splits; `datasets` reads it from the folder."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "owner" / "name"
    entries = ""
    for config in ("de-en", "plain"):
        (folder / config).mkdir(parents=True)
        entries += f"- config_name: {config}\n  default: {str(config == 'de-en').lower()}\n  data_files:\n"
        for split in ("train", "validation"):
            entries += f"  - split: {split}\n    path: {config}/{split}.parquet\n"
            rows = [{"de": f"{split} {n}", "en": f"{config} {n}"} for n in range(3000 if split == "train" else 2)]
            columns = (
                {"translation": rows} if config == "de-en" else {key: [row[key] for row in rows] for key in rows[0]}
            )
            put_parquet(folder / config / f"{split}.parquet", **columns)
    write(folder / "README.md", f"---\nconfigs:\n{entries}---\n")
    return folder


@pytest.mark.usefixtures("dataset")
def test_a_public_dataset_is_read_by_name_configuration_and_split() -> None:
    languages = {"source": "de", "target": "en"}
    corpus = only("hub:owner/name", **languages)
    assert corpus.name == "hub:owner/name:train"
    for _ in range(2):
        assert list(corpus)[-1] == Pair("train 2999", "de-en 2999", 3000)
    corpus = only("hub:owner/name/plain:validation", **languages)
    assert corpus.name == "hub:owner/name/plain:validation"
    assert sides(corpus) == [("validation 0", "plain 0"), ("validation 1", "plain 1")]
    assert len(list(only("hub:owner/name/plain:train[:10]", **languages))) == 10


@pytest.mark.usefixtures("dataset")
def test_a_public_dataset_that_cannot_be_loaded_is_refused() -> None:
    for reference in ("hub:owner/name/other:train", "hub:owner/name/plain:tset", "hub:owner/nowhere:train"):
        message = refusal(reference)
        assert message.startswith(f"{reference}: the dataset cannot be loaded (")
        assert message.endswith("; check the network and the name, which is hub:OWNER/NAME/CONFIG:SPLIT")
    assert refusal("hub:owner/name", source="de", target="fr") == (
        "hub:owner/name:train: 'translation' has 'de', 'en', not 'fr'; set data.source and data.target"
    )


def test_a_corpus_is_named_so_that_its_two_files_are_told_apart():
    assert TextCorpus("a/de.txt", "b/en.txt").name == "de.txt + en.txt"
    assert TextCorpus("de/train.txt", "en/train.txt").name == "de/train.txt + en/train.txt"
    assert TextCorpus("train.txt", "train.txt").name == "train.txt + train.txt"
