"""HTML keeps its structure whatever a model writes, and nothing that a model writes becomes markup."""

import html
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from selectolax.lexbor import LexborHTMLParser

import saccade
from saccade.text.markup import XHTML, translated_html
from saccade.text.rows import MOST_TAGS, finished, together
from saccade.text.tags import html_tokens, xml_tokens
from saccade.translator import Translator

EVIL = """
<script>alert(1)</script>|"><img src=x onerror=a>|<0>|</0>|<1/>|<br 1/>|&lt;b&gt;|-->|'x
""".strip().split("|")
FRAGMENTS = """
a|b|é|&amp;|&lt;i&gt;|&nbsp;|<|>|'|"|&|=|/| |<0>|&#60;b&#62;|<p>|</p>|<b>|</b>|<i x='>'>|</i>|<br>
<a title="t > u" href=/x>|</a>|<img alt=z>|<span title=q/>|</span>
<div>|</div>|<ul><li>|</li>|</ul>|<table><tr><td>|</td></tr></table>
<pre>|</pre>|<code>|</code>|<script>|</script>|<style>|</style>|<title>|</title>|<textarea>|</textarea>|<svg>|</svg>
<svg/>|<svg a=b/>|<math>|<!--|-->|--!>|<!-->|<!doctype x>|<?pi>|</>|</_>|<![CDATA[|]]>
<a title="|<b '|<plaintext>|<noscript>|<!--<script>
<p translate="no">|<b class=notranslate>|<select><option>|</option>|<a title='|<i/>|<button>
</svg x="y">|<foreignObject>
"""
documents = st.lists(st.sampled_from([*re.split(r"[|\n]", FRAGMENTS.strip()), "\n"]), max_size=14).map("".join)


def tree_of(text: str) -> Counter[tuple[str, ...]]:
    """Each element of a page as a browser builds it: the path to it, and its attributes that no reader sees."""
    found: Counter[tuple[str, ...]] = Counter()
    for node in LexborHTMLParser(text).root.traverse(include_text=False):
        path, up = [], node
        while up is not None and up.tag:
            path.append(up.tag)
            up = up.parent
        hidden = sorted(f"{k}={v}" for k, v in node.attributes.items() if k not in ("title", "alt"))
        found[(*path, *hidden)] += 1
    return found


@settings(deadline=None, max_examples=400)
@given(documents, st.lists(st.sampled_from(["w", " ", *EVIL]), max_size=4).map("".join), st.booleans())
@example("<svg><style><a title='</style>'>x</svg><p>y", "w", True)
@example('<a title="abc>text', '" onclick=x', False)
@example("<script><!--<script></script>a--></script>b", "w", False)
def test_a_browser_builds_the_same_tree_whatever_the_model_writes(page: str, written: str, keeps: bool) -> None:
    answer = finished(translated_html(page), lambda texts: [f"w{written}{text if keeps else ''}" for text in texts])
    assert tree_of(answer) == tree_of(page)


@given(documents)
def test_every_character_is_in_one_token_and_untranslated_markup_is_as_it_was(page: str) -> None:
    assert "".join(token.raw for token in html_tokens(page)) == page
    assert "".join(token.raw for token in xml_tokens(page)) == page
    same = finished(translated_html(page), lambda texts: texts)
    assert tree_of(same) == tree_of(page)


class Texts(HTMLParser):
    """What the standard library's parser takes for text, element by element."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(page)
        self.close()

    def handle_data(self, data: str) -> None:
        self.found.append(data)


@given(st.text(alphabet="ab <>&'\"/é0", min_size=1).filter(str.strip))
def test_text_without_tags_is_translated_as_it_is_and_comes_out_escaped(text: str) -> None:
    asked: list[str] = []

    def translate(texts: list[str]) -> list[str]:
        asked.extend(texts)
        return [f"<b>{text}</b>" for text in texts]

    answer = finished(translated_html(html.escape(text)), translate)
    assert asked == [re.sub(" +", " ", text).strip()]
    assert html.unescape(answer).strip() == f"<b>{asked[0]}</b>"
    assert "<" not in answer
    assert "".join(Texts(f"<p>{answer}</p>").found).strip() == f"<b>{asked[0]}</b>"


@pytest.mark.parametrize(
    ("page", "asked"),
    [
        ("<p>Hello <b>big</b> world</p>", ["Hello <0>big</0> world"]),
        ("<p><a href=x><b>All of it</b></a></p>", ["All of it"]),
        ("<p> One<br>two \n words </p>", ["One<br 0/>two words"]),
        ("Donau<wbr>dampf &lt;7&gt;", ["Donau<8/>dampf <7>"]),
        ("<b>x<p>y</p>z</b>", ["x", "y", "z"]),
        ("<ul><li>One<ul><li>two</ul></ul>", ["One", "two"]),
        ("<script>var a = 'no'</script><style>p{}</style><pre>no</pre>yes", ["yes"]),
        ("Run <code>ls</code> now <!-- no -->, please", ["Run <br 0/> now <1/>, please"]),
        ('<p translate="no">no <i>no</i></p><p>yes <b class="x notranslate">no</b> too', ["yes <br 0/> too"]),
        ('<img alt="A &quot;cat&quot;"><input placeholder=Name>', ['A "cat"', "Name"]),
        ("<title>A &amp; B</title>", ["A & B"]),
        ("<p>&nbsp;</p> \n <hr>", []),
    ],
)
def test_what_the_model_is_given(page: str, asked: list[str]) -> None:
    given_: list[str] = []
    finished(translated_html(page), lambda texts: given_.extend(texts) or texts)
    assert given_ == asked


def test_attributes_cannot_be_left_and_entities_survive() -> None:
    page = "<p title='a'>x</p><b>&copy; &#233; &lt;br&gt; &amp;amp;</b>"
    answer = finished(translated_html(page), lambda texts: ["\"><i>'" if text == "a" else text for text in texts])
    assert answer == '<p title="&quot;&gt;&lt;i&gt;&#x27;">x</p><b>© é &lt;br&gt; &amp;amp;</b>'


@pytest.mark.parametrize("answer", ["a <0>b", "a</0> <0>b", "a <0>b</0> <0>c</0>", "a b"])
def test_a_translation_whose_tags_do_not_fit_is_done_in_parts(answer: str) -> None:
    def translate(texts: list[str]) -> list[str]:
        return [answer if "<0>" in text else text.upper() for text in texts]

    assert finished(translated_html("<p>one <b>two</b> three</p>"), translate) == "<p>ONE <b>TWO</b> THREE</p>"


@given(st.lists(documents, max_size=4), st.booleans())
def test_pages_together_are_what_they_are_alone(pages: list[str], loses_tags: bool) -> None:
    def translate(texts: list[str]) -> list[str]:
        return [re.sub(r"<\d+>", "", text) + "!" if loses_tags else text for text in texts]

    alone = [finished(translated_html(page), translate) for page in pages]
    assert finished(together([translated_html(page) for page in pages]), translate) == alone


def test_xml_knows_elements_that_close_themselves_and_loses_what_it_cannot_hold() -> None:
    page = '<?xml version="1.0"?><html><title/><script src="x"/><p>one<br/>two</p><![CDATA[<p>no</p>]]></html>'
    answer = finished(translated_html(page, XHTML), lambda texts: [text.upper() + "\x01" for text in texts])
    assert answer == page.replace("one<br/>two", "ONE<BR 0/>TWO").replace("<BR 0/>", "<br/>")


@pytest.mark.parametrize(
    "piece", ["<!--", "<a b='", "<b>x", "</b>", "<b>x</b>", "<p ", "<script>", "&", "<svg>", "<br>"]
)
def test_a_large_page_of_anything_takes_time_in_proportion(piece: str) -> None:
    # Quadratic work on 10,000 pieces would not end while the suite runs.
    page = piece * 10_000
    assert len(finished(translated_html(page), lambda texts: texts)) >= len(page)


@pytest.fixture(scope="module")
def translator(trained: Path) -> Translator:
    return saccade.load(trained)


def test_a_model_carries_tags_through_pages(translator: Translator) -> None:
    page = (
        '<h1>A <em>small</em> dog</h1><p class="x">It is <b>three</b> o\'clock, <a href="/y?a=1&amp;b=2">Anna</a> '
        "sees <i>two <u>cats</u></i>.<br/>Is it &lt;late&gt;?</p><pre>keep  me</pre>"
    )
    answer = finished(translated_html(page), lambda texts: [t.text for t in translator.translate(texts)])
    assert tree_of(answer) == tree_of(page)
    assert "<pre>keep  me</pre>" in answer
    assert "&lt;late&gt;" in answer


def test_a_page_without_tags_is_the_plain_translation(translator: Translator) -> None:
    line = "Anna sees 3 dogs & a cat."
    answer = finished(translated_html(html.escape(line)), lambda texts: [t.text for t in translator.translate(texts)])
    assert html.unescape(answer) == translator.translate(line).text


def test_rows_with_very_many_tags_are_done_in_parts(translator: Translator) -> None:
    page = "<b>one</b> <i>dog</i> " * MOST_TAGS
    answer = finished(translated_html(page), lambda texts: [text.upper() for text in texts])
    assert answer == "<b>ONE</b> <i>DOG</i> " * MOST_TAGS
