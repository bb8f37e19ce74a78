"""Files come back as files of the same kind, and nobody's file takes more than its share."""

import io
import random
import re
import zipfile
from collections import Counter
from contextlib import suppress
from pathlib import Path

import docx
import pptx
import pytest
from defusedxml import ElementTree
from hypothesis import given, settings
from hypothesis import strategies as st
from odf.opendocument import OpenDocumentText
from odf.opendocument import load as load_odt
from odf.style import Style, TextProperties
from odf.teletype import extractText
from odf.text import A as Link
from odf.text import H, Note, NoteBody, P, Span

import saccade
from saccade.errors import SaccadeError
from saccade.serving.documents import FORMATS, TYPES, ending_of, translated_file
from saccade.serving.formats.archive import Limits
from saccade.text.rows import finished
from saccade.translator import Translator


def upper(texts: list[str]) -> list[str]:
    """Capitals outside of tags."""
    return [re.sub(r"(<[^<>]*>)|([^<]+)", lambda m: m[1] or m[2].upper(), text) for text in texts]


def turned(texts: list[str]) -> list[str]:
    """The pieces between tags, in the opposite order: as a language with other habits might."""
    out = []
    for text in texts:
        pieces = re.findall(r"<\d+>.*?</\d+>|<br \d+/>|[^<]+", text)
        out.append("".join(reversed(pieces)).upper().replace("<BR", "<br"))
    return out


def done(name: str, data: bytes, translate=upper, limits: Limits | None = None) -> bytes:  # type: ignore[no-untyped-def]
    return finished(translated_file(ending_of(name), data, limits), translate)


def packed(members: dict[str, bytes | str], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return out.getvalue()


def unpacked(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name) for name in archive.namelist()}


def elements(xml: bytes) -> Counter[str]:
    return Counter(element.tag for element in ElementTree.fromstring(xml).iter())


@pytest.fixture(scope="module")
def word() -> bytes:
    document = docx.Document()
    document.add_heading("The title", 1)
    paragraph = document.add_paragraph("One ")
    paragraph.add_run("big").bold = True
    paragraph.add_run(" dog")
    paragraph.add_run(" & a cat")  # the same formatting as the run before
    broken = document.add_paragraph("first line")
    broken.runs[0].add_break()
    broken.runs[0].add_text("second line")
    document.add_table(1, 1).cell(0, 0).text = "in a cell"
    document.sections[0].header.paragraphs[0].text = "at the top"
    out = io.BytesIO()
    document.save(out)
    return out.getvalue()


def test_a_word_file_keeps_its_formatting(word: bytes) -> None:
    document = docx.Document(io.BytesIO(done("a.docx", word)))
    title, mixed, broken = document.paragraphs
    assert title.text == "THE TITLE"
    assert title.style.name == "Heading 1"
    assert [(run.text, run.bold) for run in mixed.runs] == [("ONE ", None), ("BIG", True), (" DOG & A CAT", None)]
    assert broken.text == "FIRST LINE\nSECOND LINE"
    assert document.tables[0].cell(0, 0).text == "IN A CELL"
    assert document.sections[0].header.paragraphs[0].text == "AT THE TOP"


def test_runs_of_a_word_file_change_places_with_their_words(word: bytes) -> None:
    mixed = docx.Document(io.BytesIO(done("a.docx", word, turned))).paragraphs[1]
    assert [(run.text.strip(), run.bold) for run in mixed.runs] == [("DOG & A CAT", None), ("BIG", True), ("ONE", None)]


def test_words_outside_of_all_runs_get_one_and_everything_else_is_as_it_was(word: bytes) -> None:
    answer = done("a.docx", word, lambda texts: [f"before {text} after" for text in texts])
    assert "before " in docx.Document(io.BytesIO(answer)).paragraphs[1].text
    old, new = unpacked(word), unpacked(answer)
    assert list(old) == list(new)
    assert [name for name in old if old[name] != new[name]] == ["word/document.xml", "word/header1.xml"]


def test_fields_links_and_text_boxes_of_word_files() -> None:
    body = (
        '<w:p><w:pPr><w:b/></w:pPr><w:r><w:t>See </w:t></w:r><w:hyperlink r:id="x"><w:r><w:t>here</w:t></w:r>'
        "</w:hyperlink><w:r><w:t> now</w:t></w:r></w:p>"
        '<w:p><w:r><w:t>page </w:t></w:r><w:r><w:fldChar w:fldCharType="begin"/></w:r><w:r><w:instrText>PAGE'
        '</w:instrText></w:r><w:r><w:fldChar w:fldCharType="end"/></w:r><w:r><w:t> of it</w:t></w:r></w:p>'
        '<w:p><w:r><w:fldChar w:fldCharType="begin"/></w:r><w:r><w:t>open field</w:t></w:r></w:p>'
        "<w:p><w:r><w:pict><w:txbxContent><w:p><w:r><w:t>boxed</w:t></w:r></w:p></w:txbxContent></w:pict></w:r></w:p>"
    )
    xml = f'<w:document xmlns:w="u:w" xmlns:r="u:r"><w:body>{body}</w:body></w:document>'
    answer = unpacked(done("a.docx", packed({"word/document.xml": xml})))["word/document.xml"]
    assert elements(answer) == elements(xml.encode())
    text = re.sub(r"<[^>]*>", "", answer.decode())
    assert text == "SEE HERE NOWPAGE PAGE OF ITOPEN FIELDBOXED"
    assert answer.index(b"begin") < answer.index(b"PAGE</w:instr") < answer.index(b'"end"')


def test_a_presentation_keeps_its_formatting() -> None:
    slides = pptx.Presentation()
    slide = slides.slides.add_slide(slides.slide_layouts[1])
    slide.shapes.title.text = "The title"
    paragraph = slide.placeholders[1].text_frame.paragraphs[0]
    for text, italic in (("a ", False), ("slanted", True), (" word", False)):
        run = paragraph.add_run()
        run.text, run.font.italic = text, italic
    out = io.BytesIO()
    slides.save(out)
    shapes = pptx.Presentation(io.BytesIO(done("a.PPTX", out.getvalue()))).slides[0].shapes
    assert shapes.title.text == "THE TITLE"
    runs = shapes[1].text_frame.paragraphs[0].runs
    assert [(run.text, run.font.italic) for run in runs] == [("A ", False), ("SLANTED", True), (" WORD", False)]


def test_an_opendocument_text_keeps_spans_links_and_notes() -> None:
    document = OpenDocumentText()
    bold = Style(name="Bold", family="text")
    bold.addElement(TextProperties(fontweight="bold"))
    document.automaticstyles.addElement(bold)
    document.text.addElement(H(outlinelevel=1, text="The title"))
    paragraph = P(text="One ")
    paragraph.addElement(Span(stylename=bold, text="big"))
    paragraph.addText(" dog & ")
    paragraph.addElement(Link(href="http://x.y/", text="a link"))
    note = Note(noteclass="footnote", id="n")
    body = NoteBody()
    body.addElement(P(text="a note"))
    note.addElement(body)
    paragraph.addElement(note)
    paragraph.addText(" at the end")
    document.text.addElement(paragraph)
    out = io.BytesIO()
    document.write(out)
    answer = done("a.odt", out.getvalue())
    with zipfile.ZipFile(io.BytesIO(answer)) as archive:
        assert archive.infolist()[0].filename == "mimetype"
        assert archive.infolist()[0].compress_type == zipfile.ZIP_STORED
    again = load_odt(io.BytesIO(answer))
    assert extractText(again.getElementsByType(H)[0]) == "THE TITLE"
    assert extractText(again.getElementsByType(P)[0]) == "ONE BIG DOG & A LINKA NOTE AT THE END"
    assert [extractText(span) for span in again.getElementsByType(Span)] == ["BIG"]
    assert again.getElementsByType(Link)[0].getAttribute("href") == "http://x.y/"
    assert elements(unpacked(answer)["content.xml"]) == elements(unpacked(out.getvalue())["content.xml"])


def test_a_book_is_translated_chapter_by_chapter() -> None:
    chapter = (
        '<?xml version="1.0" encoding="utf-8"?>\n<!DOCTYPE html PUBLIC "-//W3C//DTD XHTML 1.1//EN" "x.dtd">\n'
        '<html xmlns="http://www.w3.org/1999/xhtml"><head><title/></head><body><p>One&nbsp;<i>dog</i> &amp; '
        'more<br/>now<img alt="a cat" src="c.png"/></p></body></html>'
    )
    contents = "<ncx><navLabel><text>Chapter one</text></navLabel><meta>no</meta></ncx>"
    book = packed({"mimetype": "application/epub+zip", "a/c1.xhtml": chapter, "a/toc.ncx": contents, "a/c.css": "p{}"})
    answer = unpacked(done("b.epub", book))
    assert list(answer) == ["mimetype", "a/c1.xhtml", "a/toc.ncx", "a/c.css"]
    text = answer["a/c1.xhtml"].decode()
    assert '<p>ONE\xa0<i>DOG</i> &amp; MORE<br/>NOW<img alt="A CAT" src="c.png"/></p>' in text
    assert text.startswith(chapter[: chapter.index("<body>")])
    assert answer["a/toc.ncx"] == b"<ncx><navLabel><text>CHAPTER ONE</text></navLabel><meta>no</meta></ncx>"


def test_subtitles_keep_their_times_and_their_lines() -> None:
    first, second = "1\r\n00:00:01,000 --> 00:00:02,500\r\n", "\r\n\r\n2\r\n00:00:03,000 --> 00:00:04,000\r\n"
    subtitles = f"{first}the dog\r\nsees <i>it</i>{second}ok\r\n"
    answer = done("s.srt", subtitles.encode(), lambda texts: [upper([t])[0] + "\n\n-->" * (t == "ok") for t in texts])
    assert answer.decode() == f"{first}THE DOG\r\nSEES <i>IT</i>{second}OK →\r\n"


def test_subtitles_keep_their_place_on_the_screen_and_who_says_what() -> None:
    time = "1\n00:00:01,000 --> 00:00:02,500\n"
    told: list[str] = []

    def seen(texts: list[str]) -> list[str]:
        told.extend(texts)
        return upper(texts)

    for cue, sentences in (
        ("{\\an8}the dog\nsees it", ["the dog sees it"]),
        ("{\\an8}{\\i1} - one dog\n– one cat", ["one dog", "one cat"]),
        ("- a dog that\nsees\n- a cat", ["a dog that sees", "a cat"]),
        ("-12 degrees\n-and more", ["-12 degrees -and more"]),
        ("from two\n- to three", ["from two - to three"]),
        ("{\\an8}", [""]),
    ):
        told.clear()
        answer = done("s.srt", f"{time}{cue}\n".encode(), seen).decode()
        assert told == sentences
        kept = re.sub(r"\s+", " ", f"{time}{cue}\n".upper().replace("\\AN8", "\\an8").replace("\\I1", "\\i1"))
        assert re.sub(r"\s+", " ", answer) == kept
        assert answer.count("\n") == f"{time}{cue}\n".count("\n")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_texts_keep_lines_and_encoding(encoding: str) -> None:
    text = "one é\r\n\r\n  two\nthree"
    assert done("t.txt", text.encode(encoding)).decode(encoding) == "ONE É\r\n\r\n  TWO\nTHREE"


def test_pages_are_written_in_the_encoding_that_they_say() -> None:
    page = '<meta charset="iso-8859-1"><p>café'
    answer = done("p.html", page.encode("latin-1"), lambda texts: [text + " → ж" for text in texts])
    assert answer.decode("latin-1") == '<meta charset="iso-8859-1"><p>café &#8594; &#1078;'


BOMB = b"\0" * (40 << 20)


@pytest.mark.parametrize(
    ("name", "data", "why"),
    [
        ("a.exe", b"x", "file format not supported; these are: .txt, .html"),
        ("a.docx/../x", b"x", "file format not supported"),
        ("a.docx", b"", "empty file"),
        ("a.docx", b"PK\x03\x04 no", "damaged, or not what its name says"),
        ("a.txt", b"\xff\xfe\x00\xd8", "is not in UTF-16; save it in UTF-8"),
        ("a.txt", b"\xe9", "is not in UTF-8; save it in UTF-8"),
        ("a.srt", b"no times", "no line like 00:00:01,000"),
        ("a.odt", packed({"content.xml": BOMB}), "unpacks to more than"),
        ("a.odt", packed({f"{i}": b"\0" * 900_000 for i in range(90)}), "unpacks to more than"),
        ("a.odt", packed({str(i): "" for i in range(2_001)}), "more than 2,000 members"),
        ("a.odt", packed({"../../etc/x": "x"}), "a member with the name '../../etc/x', which is not taken"),
        ("a.odt", packed({"/abs": "x"}), "not taken"),
        ("a.odt", packed({"a\\b": "x"}), "not taken"),
        ("a.odt", packed({"a": "x"}, zipfile.ZIP_LZMA), "packed in an unusual way"),
        ("a.odt", packed({"content.xml": '<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>'}), "document type or entities"),
        ("a.odt", packed({"content.xml": '<!DOCTYPE a SYSTEM "file:///etc/passwd"><a/>'}), "document type or entities"),
        ("a.odt", packed({"content.xml": "<a><b></a>"}), "is damaged"),
        ("a.odt", packed({"content.xml": f"<a>{'<b/>' * 600_000}</a>"}, zipfile.ZIP_STORED), "more than 500,000 tags"),
        ("a.epub", packed({"c.xhtml": '<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>'}), "entities of its own"),
        (
            "a.docx",
            packed({"word/document.xml": b'<?xml version="1.0" encoding="latin-1"?><a/>'}),
            "save the file in UTF-8",
        ),
    ],
)
def test_what_is_refused_is_named_with_a_remedy(name: str, data: bytes, why: str) -> None:
    with pytest.raises(SaccadeError, match=re.escape(why)):
        done(name, data)


def test_sizes_that_lie_are_found_out() -> None:
    honest = packed({"content.xml": b"<a>" + b" " * 3_000_000 + b"</a>"})
    place = honest.index(b"PK\x01\x02") + 24  # the unpacked size, in the list of members
    lying = honest[:place] + (10).to_bytes(4, "little") + honest[place + 4 :]
    with pytest.raises(SaccadeError, match=r"damaged|unpacks to more"):
        done("a.odt", lying, limits=Limits(unpacked=100_000))


def test_a_file_within_a_file_is_not_opened(word: bytes) -> None:
    inner = packed({"content.xml": BOMB})
    document = packed({"word/document.xml": "<w:document xmlns:w='w'/>", "word/embeddings/a.zip": inner})
    assert unpacked(done("a.docx", document))["word/embeddings/a.zip"] == inner


@pytest.mark.parametrize("piece", ["<w:p>", "<w:ins>", "<w:r>", "<w:hyperlink>"])
def test_deep_files_do_not_end_the_server(piece: str) -> None:
    deep = piece * 20_000 + "<w:t>x</w:t>" + piece.replace("<", "</") * 20_000
    document = packed({"word/document.xml": f"<w:d xmlns:w='w'><w:p>{deep}</w:p></w:d>"})
    assert elements(unpacked(done("a.docx", document))["word/document.xml"])["{w}t"] == 1


@settings(deadline=None, max_examples=60)
@given(st.randoms(use_true_random=False), st.sampled_from(sorted(FORMATS)))
def test_damaged_files_are_refused_or_done(word: bytes, chance: random.Random, ending: str) -> None:
    data = bytearray(word)
    for _ in range(chance.randrange(1, 40)):
        data[chance.randrange(len(data))] = chance.randrange(256)
    with suppress(SaccadeError):
        done("a" + ending, bytes(data[: chance.randrange(1, len(data))] if chance.random() < 0.3 else data))


def test_every_format_has_a_type() -> None:
    assert FORMATS.keys() == TYPES.keys()


def test_a_model_translates_a_word_file(trained: Path, word: bytes) -> None:
    translator: Translator = saccade.load(trained)
    answer = done("a.docx", word, lambda texts: [one.text for one in translator.translate(texts)])
    paragraphs = docx.Document(io.BytesIO(answer)).paragraphs
    assert paragraphs[0].text == translator.translate("The title").text
    assert Counter(run.bold for run in paragraphs[1].runs)[True] == 1
