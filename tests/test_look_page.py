"""A look as one HTML file, and any weights shown: what is in the text, and what is refused."""

import base64
import hashlib
import html
import json
import re
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from looks import odd_look, sentence_look

import saccade.looking
from saccade.errors import SaccadeError
from saccade.looking import show
from saccade.looking.json import to_dict
from saccade.looking.look import CROSS, ENCODER, HeadWeights
from saccade.looking.page import MISSING, STEPS, look_page, pack

LOOK = sentence_look(2, 2)
STATIC = Path(saccade.looking.__file__).parent / "static"


def between(text: str, start: str, end: str) -> str:
    return text.split(start, 1)[1].split(end, 1)[0]


def data_of(page: str) -> dict:
    return json.loads(between(page, '<script type="application/json" id="data">', "</script>"))


def unpack(packed: dict) -> np.ndarray:
    planes = np.frombuffer(zlib.decompress(base64.b64decode(packed["packed"]), wbits=-15), np.uint8).astype(int)
    count = int(np.prod(packed["shape"]))
    steps = planes[:count] + 256 * planes[count:]
    return np.where(steps == MISSING, np.nan, steps / STEPS).reshape(packed["shape"])


@given(
    arrays.arrays(
        np.float32,
        arrays.array_shapes(min_dims=2, max_dims=2, max_side=9),
        elements=st.one_of(st.floats(0, 1, width=32), st.just(np.nan)),
    )
)
def test_packed_weights_come_back_to_four_decimals(weights):
    assert np.allclose(unpack(pack(weights)), weights, atol=0.5001 / STEPS, rtol=0, equal_nan=True)


def test_the_page_holds_all_that_the_json_holds():
    data, expected = data_of(look_page(LOOK)), json.loads(json.dumps(to_dict(LOOK)))
    for given_heads, heads in zip(
        [data.pop("encoder"), *(path.pop("heads") for path in data["paths"])],
        [expected.pop("encoder"), *(path.pop("heads") for path in expected["paths"])],
        strict=True,
    ):
        for one, other in zip(given_heads, heads, strict=True):
            assert np.abs(unpack(one.pop("weights")) - np.array(other.pop("weights"))).max() < 1e-4
            assert one == other
    assert data == expected


def test_the_page_allows_its_own_script_and_style_and_nothing_else():
    page = look_page(LOOK)
    policy = between(page, 'Content-Security-Policy" content="', '"')
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    for kind, text in (
        ("style", between(page, "<style>", "</style>")),
        ("script", page.rsplit("<script>", 1)[1].split("</script>", 1)[0]),
    ):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    # Names of XML's namespaces are no addresses to go to.
    assert set(re.findall(r"https?://[^\s\"'`]+", page)) <= {"http://www.w3.org/2000/svg"}
    assert not re.search(r"\b(src|href)=[\"']?(?!\$|data:|\$\{)\w+:", page.split("<script", 1)[0])


def test_text_never_becomes_markup():
    page = look_page(odd_look())
    data = between(page, 'id="data">', "</script>")
    assert "<" not in data
    assert data_of(page)["source"]["pieces"] == list(odd_look().source.pieces)
    assert between(page, "<title>", "</title>").startswith("odd &lt;/title&gt; &amp; co")
    assert page.count("</script>") == 2


def test_half_a_surrogate_pair_does_not_stop_the_page():
    source = replace(LOOK.source, text="a\ud83d", word_texts=("a\ud83d", *LOOK.source.word_texts[1:]))
    assert look_page(replace(LOOK, source=source, model="m\ud83d")).encode()


def test_the_scripts_travel_with_the_package():
    text = (Path(__file__).parent.parent / "pyproject.toml").read_text()
    patterns = re.findall(r'"(.+?)"', between(text, "[tool.setuptools.package-data]\nsaccade = [", "]"))
    packed = {path for pattern in patterns for path in STATIC.parent.parent.glob(pattern)}
    assert set(STATIC.iterdir()) <= packed


def test_what_does_not_fit_is_named():
    source, path = LOOK.source, LOOK.paths[0]
    rows = len(path.target.pieces)
    wrong = HeadWeights(CROSS, 1, 2, np.zeros((3, 4), np.float32))
    with pytest.raises(SaccadeError, match=f"cross layer 1, head 2: weights are 3 × 4, but there are {rows} and 15"):
        look_page(replace(LOOK, paths=(replace(path, heads=(wrong,)),)))
    with pytest.raises(SaccadeError, match="stack='encoder' stands where only decoder and cross may"):
        look_page(replace(LOOK, paths=(replace(path, heads=(replace(wrong, stack=ENCODER),)),)))
    with pytest.raises(SaccadeError, match=f"path 1 has 1 steps for {rows} pieces"):
        look_page(replace(LOOK, paths=(replace(path, steps=path.steps[:1]),)))
    with pytest.raises(SaccadeError, match="source: words has 1 numbers for 15 pieces"):
        look_page(replace(LOOK, source=replace(source, words=(0,))))
    with pytest.raises(SaccadeError, match="words are numbered from 0, and each needs a piece"):
        look_page(replace(LOOK, source=replace(source, words=(1,) * 15)))
    high = HeadWeights(ENCODER, 1, 1, np.full((15, 15), 2, np.float32))
    with pytest.raises(SaccadeError, match=r"weights\[0, 0\]=2 is not between 0 and 1; show the weights after the"):
        look_page(replace(LOOK, encoder=(high,)))


ROWS, COLUMNS = ["die", "Katze"], ["the", "black", "cat"]
WEIGHTS = np.array([[0.9, 0.1, 0.0], [0.0, 0.25, 0.75]])


@pytest.mark.parametrize("lead", [(), (3,), (2, 3)])
def test_any_weights_are_shown_one_matrix_or_many(lead, tmp_path):
    shown = show(np.broadcast_to(WEIGHTS, (*lead, 2, 3)), ROWS, COLUMNS, title="cats")
    (path,) = data_of(shown.html)["paths"]
    layers, heads = (1,) * (2 - len(lead)) + lead
    assert [(head["layer"], head["head"]) for head in path["heads"]] == [
        (layer, head) for layer in range(1, layers + 1) for head in range(1, heads + 1)
    ]
    assert np.allclose(unpack(path["heads"][-1]["weights"]), WEIGHTS, atol=1e-4)
    assert path["target"]["pieces"] == ROWS
    assert shown.save(tmp_path / "deep" / "x.html").read_text(encoding="utf-8") == shown.html


def test_a_notebook_shows_it_in_a_frame_of_its_own():
    shown = show(WEIGHTS, ROWS, COLUMNS)
    frame = shown._repr_html_()
    assert html.unescape(between(frame, 'srcdoc="', '"')) == shown.html
    assert 'sandbox="allow-scripts allow-downloads"' in frame


def test_tokens_that_mark_where_words_begin_are_merged_to_words():
    side = show(np.eye(4), ["▁the", "▁ca", "t", "</s>"], list("abcd")).look.paths[0].target
    assert side.words == (0, 1, 1, 2)
    assert side.word_texts == ("the", "cat", "</s>")
    assert show(WEIGHTS, ROWS, COLUMNS).look.source.words == (0, 1, 2)


def test_shapes_that_do_not_fit_are_named():
    with pytest.raises(SaccadeError, match=r"weights have shape \(3,\); expected \(rows, columns\), \(heads, rows"):
        show([0.1, 0.2, 0.7], ROWS, COLUMNS)
    with pytest.raises(
        SaccadeError, match=r"weights are 3 × 2 in the last two axes of \(3, 2\).* 2 rows and 3 columns"
    ):
        show(WEIGHTS.T, ROWS, COLUMNS)
    with pytest.raises(SaccadeError, match=r"nothing to show: weights \(0, 2, 3\)"):
        show(np.zeros((0, 2, 3)), ROWS, COLUMNS)
    with pytest.raises(SaccadeError, match="not between 0 and 1"):
        show(WEIGHTS * 9, ROWS, COLUMNS)
