"""The page of a look in a real Chromium: what is drawn is checked against the numbers, by mouse and by keyboard."""

import base64
import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from looks import long_look, odd_look, sentence_look

import saccade
from saccade.analysis.look import look_at
from saccade.looking import show
from saccade.looking.json import to_dict
from saccade.looking.look import CROSS, DECODER, ENCODER, HeadWeights, Look
from saccade.looking.page import look_page, look_script, look_style
from saccade.looking.terminal import merge_to_words

LOOK = sentence_look()
Open = Callable[..., Any]


@pytest.fixture
def opened(browser, tmp_path: Path) -> Iterator[Open]:
    """Opens a look as a file; whatever it asks of the network, and whatever error it throws, fails the test."""
    contexts, wrong = [], []

    def check(route):
        if not route.request.url.startswith(("file:", "data:", "blob:")):
            wrong.append(route.request.url)
        route.continue_()

    def start(look: Look, **how):
        context = browser.new_context(viewport={"width": 1280, "height": 1000}, accept_downloads=True, **how)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
        page.route("**/*", check)
        path = tmp_path / "look.html"
        path.write_text(look_page(look), encoding="utf-8")
        page.goto(path.as_uri())
        page.wait_for_selector(".saccade-look[data-drawn]")
        return page

    yield start
    for context in contexts:
        context.close()
    assert not wrong


def redrawn(page, act: Callable[[], object]) -> None:
    """Do something that draws the map anew, and wait until it is."""
    before = page.get_attribute(".saccade-look", "data-drawn")
    act()
    page.wait_for_function("before => document.querySelector('.saccade-look').dataset.drawn !== before", arg=before)


def weights_of(heads: tuple[HeadWeights, ...], stack: str, *numbers: tuple[int, int]) -> np.ndarray:
    """The mean of the heads of these layers and numbers; of all, if none is named."""
    chosen = [h.weights for h in heads if h.stack == stack and (not numbers or (h.layer, h.head) in numbers)]
    return np.mean(chosen, axis=0, dtype=np.float64)


def in_words(weights: np.ndarray, path: int = 0) -> np.ndarray:
    return merge_to_words(weights, LOOK.paths[path].target.words, LOOK.source.words)


def hover(page, row: int, column: int, which: int = 0) -> str:
    """The value that is shown when the mouse is on a cell."""
    plot = page.locator(".map").nth(which)
    plot.scroll_into_view_if_needed()
    size = plot.evaluate("map => parseFloat(map.style.getPropertyValue('--size'))")
    plot.hover(position={"x": (column + 0.5) * size, "y": (row + 0.5) * size}, force=True)
    return page.inner_text(".readout .value")


def shows(shown: str, weight: float) -> bool:
    """Whether a shown value is the weight, to three decimals."""
    return weight < 0.0006 if shown.startswith("<") else abs(float(shown) - weight) < 0.0006


def pixels(page, selector: str = ".weights") -> np.ndarray:
    """What a canvas holds, (height, width, 3)."""
    found = page.eval_on_selector(
        selector,
        "canvas => { const {width, height} = canvas;"
        " const {data} = canvas.getContext('2d').getImageData(0, 0, width, height);"
        " return [height, width, btoa(Array.from(data, (byte) => String.fromCharCode(byte)).join(''))]; }",
    )
    return np.frombuffer(base64.b64decode(found[2]), np.uint8).reshape(found[0], found[1], 4)[:, :, :3].astype(int)


def read_back(page, top: float = 1.0) -> np.ndarray:
    """The weights that the colours of the map say, by the ramp that is drawn below it."""
    parts = np.array([1 << 16, 1 << 8, 1])
    ramp, drawn = pixels(page, ".ramp")[0] @ parts, pixels(page) @ parts
    order = np.argsort(ramp, kind="stable")
    place = np.searchsorted(ramp[order], drawn).clip(max=len(ramp) - 1)
    assert (ramp[order][place] == drawn).all()  # every colour of the map is one of the ramp
    return order[place] / (len(ramp) - 1) * top


# Where two neighbours of the ramp are one colour, a colour says the weight to within a step and a half.
CLOSE = 1.5 / 255


def test_the_value_under_the_mouse_is_the_weight_and_the_words_are_named(opened):
    page = opened(LOOK)
    expected = in_words(weights_of(LOOK.paths[0].heads, CROSS))
    for row, column in ((0, 0), (4, 5), (11, 12), (3, 9)):
        assert shows(hover(page, row, column), expected[row, column])
    said = page.inner_text(".readout")
    assert LOOK.paths[0].target.word_texts[3] in said
    assert LOOK.source.word_texts[9] in said


def test_lines_between_words_are_as_dark_as_the_weight(opened):
    page = opened(LOOK)
    expected = in_words(weights_of(LOOK.paths[0].heads, CROSS))
    hover(page, 4, 5)
    links = page.eval_on_selector_all(
        ".links path", "all => all.map(p => [+p.dataset.row, +p.dataset.column, +p.getAttribute('stroke-opacity')])"
    )
    assert {row for row, *_ in links} == {4}
    assert {column for _, column, _ in links} == set(np.flatnonzero(expected[4] >= 0.02).tolist())
    assert all(abs(dark - expected[row, column]) < 0.0006 for row, column, dark in links)
    page.locator(".above .word").nth(5).hover()  # and of a word that is looked at: from all that look at it
    rows = page.eval_on_selector_all(".links path", "all => all.map(p => +p.dataset.row)")
    assert set(rows) == set(np.flatnonzero(expected[:, 5] >= 0.02).tolist())


def test_layer_and_head_are_chosen_from_lists_and_by_opening_a_small_map(opened):
    page = opened(LOOK)
    heads = LOOK.paths[0].heads
    redrawn(page, lambda: page.select_option("select[name=layer]", "3"))
    of_layer = weights_of(heads, CROSS, *((3, n) for n in range(1, 7)))
    assert shows(hover(page, 2, 2), in_words(of_layer)[2, 2])
    redrawn(page, lambda: page.select_option("select[name=head]", "5"))
    assert shows(hover(page, 6, 7), in_words(weights_of(heads, CROSS, (3, 5)))[6, 7])
    assert "layer 3, head 5" in page.inner_text(".heat h2")
    redrawn(page, lambda: page.click("[data-head='cross.4.2']"))
    assert shows(hover(page, 6, 7), in_words(weights_of(heads, CROSS, (4, 2)))[6, 7])
    assert (page.input_value("select[name=layer]"), page.input_value("select[name=head]")) == ("4", "2")
    assert page.locator(".thumb[aria-pressed=true][data-head^=cross]").count() == 1


def test_the_mean_of_chosen_heads_is_shown(opened):
    page = opened(LOOK)
    redrawn(page, lambda: page.click("[data-head='cross.1.1']"))
    page.check("input[name=several]")
    redrawn(page, lambda: page.click("[data-head='cross.3.3']"))
    redrawn(page, lambda: page.click("[data-head='cross.4.6']"))
    expected = in_words(weights_of(LOOK.paths[0].heads, CROSS, (1, 1), (3, 3), (4, 6)))
    assert shows(hover(page, 5, 5), expected[5, 5])
    assert "mean of 3 heads" in page.inner_text(".heat h2")
    assert page.input_value("select[name=head]") == "several"


def test_stacks_alone_and_side_by_side(opened):
    page = opened(LOOK)
    redrawn(page, lambda: page.get_by_role("radio", name="Encoder self").check())
    read = merge_to_words(weights_of(LOOK.encoder, ENCODER), LOOK.source.words, LOOK.source.words)
    assert shows(hover(page, 3, 4), read[3, 4])
    redrawn(page, lambda: page.get_by_role("radio", name="Side by side").check())
    assert page.eval_on_selector_all(".heat", "all => all.map(e => e.dataset.stack)") == [ENCODER, DECODER, CROSS]
    target = LOOK.paths[0].target
    # Columns of the decoder are its inputs: the start, and the pieces without the end.
    inputs = (0, *(word + 1 for word in target.words[:-1]))
    written = merge_to_words(weights_of(LOOK.paths[0].heads, DECODER), target.words, inputs)
    assert shows(hover(page, 5, 4, which=1), written[5, 4])
    assert target.word_texts[3] in page.inner_text(".readout")
    assert shows(hover(page, 2, 2, which=2), in_words(weights_of(LOOK.paths[0].heads, CROSS))[2, 2])


def test_pieces_are_merged_to_words_or_not(opened):
    page = opened(LOOK)
    pieces = weights_of(LOOK.paths[0].heads, CROSS)
    assert pixels(page).shape[:2] == in_words(pieces).shape
    redrawn(page, lambda: page.get_by_role("radio", name="Pieces").check())
    assert pixels(page).shape[:2] == pieces.shape
    assert shows(hover(page, 1, 2), pieces[1, 2])
    assert page.inner_text(".above .word.goes-on") == "ment"
    redrawn(page, lambda: page.get_by_role("radio", name="Decoder self").check())
    written = LOOK.paths[0].target.pieces
    assert shows(hover(page, 5, 4), weights_of(LOOK.paths[0].heads, DECODER)[5, 4])
    assert page.locator(".above .word").all_inner_texts() == ["⟨start⟩", *(p.lstrip("▁") for p in written[:-1])]


def test_each_translation_has_its_own_attention_and_steps(opened):
    page = opened(LOOK)
    redrawn(page, lambda: page.locator(".path input").nth(2).check())
    expected = in_words(weights_of(LOOK.paths[2].heads, CROSS), path=2)
    assert shows(hover(page, 4, 6), expected[4, 6])
    assert page.locator(".below .word").all_inner_texts()[:-1] == list(LOOK.paths[2].target.word_texts[:-1])
    assert page.locator(".path .score").nth(2).inner_text() == f"{LOOK.paths[2].score:.2f}"


def test_another_translation_may_be_chosen_while_the_heads_of_one_are_drawn(opened):
    page = opened(LOOK)
    # At once, so that thumbnails of one path are still to be painted when another of another length is chosen.
    page.evaluate(
        """() => { const paths = document.querySelectorAll(".path input");
                  for (let i = 0; i < 12; i++) paths[i % 2 ? 0 : 2].click(); paths[2].click(); }"""
    )
    page.wait_for_function(
        "n => document.querySelectorAll('.below .word').length === n", arg=len(LOOK.paths[2].target.word_texts)
    )
    assert page.locator(".below .word").all_inner_texts()[:-1] == list(LOOK.paths[2].target.word_texts[:-1])


def test_a_step_shows_its_probability_and_what_else_might_have_stood_there(opened):
    page = opened(LOOK)
    page.locator(".chip").nth(2).click()
    step, piece = LOOK.paths[0].steps[2], LOOK.paths[0].target.pieces[2]
    names = page.locator(".alternative bdi").all_inner_texts()
    assert [name.lstrip("·") for name in names] == [each.lstrip("▁") for each, _ in step.alternatives]
    assert page.inner_text(".alternative.chosen bdi") == piece.lstrip("▁")
    shown = float(page.inner_text(".alternative.chosen .score").rstrip("%")) / 100
    assert abs(shown - step.probability) < 0.006
    # A word of several pieces shows the step of each.
    word = next(w for w in LOOK.paths[0].target.words if LOOK.paths[0].target.words.count(w) > 1)
    page.locator(".below .word").nth(word).click()
    assert page.locator(".step").count() == LOOK.paths[0].target.words.count(word)


def test_the_keyboard_reaches_everything(opened):
    page = opened(LOOK)
    expected = in_words(weights_of(LOOK.paths[0].heads, CROSS))
    page.focus(".map")
    for key in ("Home", "ArrowDown", "ArrowDown", "ArrowRight"):  # the first finds the first cell
        page.keyboard.press(key)
    assert shows(page.inner_text(".readout .value"), expected[2, 1])
    assert LOOK.paths[0].target.word_texts[2] in page.inner_text(".readout")
    page.keyboard.press("End")
    assert shows(page.inner_text(".readout .value"), expected[2, -1])
    page.keyboard.press("Enter")
    assert page.inner_text(".chip[aria-selected=true]") == LOOK.paths[0].target.word_texts[2]
    outline = page.evaluate("getComputedStyle(document.querySelector('.map')).outlineStyle")
    assert outline == "solid"  # where the keyboard is can be seen
    page.focus("[data-head='cross.2.2']")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.dataset.head") == "cross.2.3"
    redrawn(page, lambda: page.keyboard.press("Enter"))
    assert "layer 2, head 3" in page.inner_text(".heat h2")


def test_tab_walks_from_control_to_control_and_each_has_a_name(opened):
    page = opened(LOOK)
    names, seen = [], set()
    for _ in range(120):
        page.keyboard.press("Tab")
        found = page.evaluate(
            "(() => { const e = document.activeElement; if (e === document.body) return null; e.dataset.at ??="
            " Math.random(); const label = e.closest('label'); return [e.dataset.at, e.getAttribute('aria-label') ||"
            " e.textContent.trim() || (label && label.textContent.trim()), e.classList[0] || e.name || e.tagName]; })()"
        )
        if found is None or found[0] in seen:
            break
        seen.add(found[0])
        names.append(found)
    assert all(name for _, name, _ in names), names
    kinds = {kind for *_, kind in names}
    assert {"map", "layer", "head", "scale", "thumb"} <= kinds


def test_strongest_links_stand_there_in_words(opened):
    page = opened(LOOK)
    expected = in_words(weights_of(LOOK.paths[0].heads, CROSS))
    page.click("summary")
    told = page.locator(".told li").all_inner_texts()
    for row, text in enumerate(told[:-1]):
        best = int(expected[row].argmax())
        assert text.startswith(LOOK.paths[0].target.word_texts[row])
        assert f"looks most at {LOOK.source.word_texts[best]}"[:20] in text
        assert shows(text.rsplit(", ", 1)[1], expected[row, best])


def test_512_tokens_are_drawn_as_the_numbers_say(opened):
    look = long_look()
    page = opened(look)
    redrawn(page, lambda: page.click("[data-head='cross.1.1']"))
    weights = weights_of(look.paths[0].heads, CROSS, (1, 1))
    top = float(np.round(weights, 4).max())
    found = read_back(page, top)
    assert found.shape == (512, 512)
    assert np.abs(found - weights).max() <= top * CLOSE + 1e-4
    assert shows(hover(page, 77, 80), weights[77, 80])
    page.wait_for_selector(".heads[data-drawn]")
    assert page.locator(".thumb").count() == 48
    print("redraw of 512 × 512:", page.get_attribute(".saccade-look", "data-milliseconds"), "ms")
    page.focus(".map")
    page.keyboard.press("End")
    page.keyboard.press("End")
    box = page.eval_on_selector(".scroller", "e => [e.scrollLeft, e.clientWidth, e.scrollWidth]")
    assert box[0] + box[1] >= box[2] - 60  # the cell that the keys move stays in sight


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_colours_say_the_weights_in_light_and_dark_and_grow_evenly(opened, theme):
    page = opened(LOOK, color_scheme=theme)
    expected = in_words(weights_of(LOOK.paths[0].heads, CROSS))
    assert np.abs(read_back(page) - expected).max() <= CLOSE
    stops = re.findall("#(\\w{6})", next(line for line in look_script().splitlines() if f" {theme}: [" in line))
    ends = pixels(page, ".ramp")[0][[0, -1]]
    assert ["".join(f"{part:02x}" for part in end) for end in ends] == [stops[0], stops[-1]]
    luminance = pixels(page, ".ramp")[0] @ np.array([0.2126, 0.7152, 0.0722])
    steps = np.diff(luminance) * (-1 if theme == "light" else 1)
    assert (steps > -0.5).all()  # one way only, whatever hues an eye can tell
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    redrawn(page, lambda: page.click(".theme"))
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != ground
    assert np.abs(read_back(page) - expected).max() <= CLOSE


def test_weights_that_are_no_numbers_stay_clear(opened):
    weights = LOOK.paths[0].heads[-1].weights.copy()
    weights[0, 0] = np.nan
    head = HeadWeights(CROSS, 1, 1, weights)
    path = LOOK.paths[0]
    page = opened(Look("nan", LOOK.source, (type(path)(path.target, path.score, (), (head,)),)))
    redrawn(page, lambda: page.get_by_role("radio", name="Pieces").check())
    alpha = page.eval_on_selector(
        ".weights", "c => [...c.getContext('2d').getImageData(0, 0, 2, 1).data].filter((_, i) => i % 4 === 3)"
    )
    assert alpha == [0, 255]
    assert hover(page, 0, 0) == "no number"


def test_the_map_is_saved_as_svg_and_png(opened, tmp_path):
    page = opened(LOOK)
    expected = in_words(weights_of(LOOK.paths[0].heads, CROSS))
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save the map as SVG").click()
    path = tmp_path / saved.value.suggested_filename
    saved.value.save_as(path)
    tree = ElementTree.parse(path)
    cells = tree.findall(".//{http://www.w3.org/2000/svg}rect[{http://www.w3.org/2000/svg}title]")
    assert len(cells) == expected.size
    assert shows(cells[0][0].text.rsplit(": ", 1)[1], expected[0, 0])
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save the map as PNG").click()
    path = tmp_path / saved.value.suggested_filename
    saved.value.save_as(path)
    from PIL import Image

    with Image.open(path) as image:
        image.verify()
        assert min(image.size) > 400


def test_a_long_map_is_saved_as_pixels(opened, tmp_path):
    page = opened(long_look(100, 1, 2))
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save the map as SVG").click()
    saved.value.save_as(tmp_path / "long.svg")
    tree = ElementTree.parse(tmp_path / "long.svg")
    assert len(tree.findall(".//{http://www.w3.org/2000/svg}image")) == 1


@pytest.mark.parametrize("width", [1280, 360])
def test_any_script_and_any_length_fits_the_page(opened, width):
    look = odd_look()
    page = opened(look)
    page.set_viewport_size({"width": width, "height": 800})
    page.wait_for_timeout(150)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.inner_text("h1") == look.model
    assert page.eval_on_selector(".above", "e => e.dir") == "rtl"
    words = page.locator(".above .word").all_inner_texts()
    assert words[:4] == list(look.source.word_texts[:4])
    assert words[4] == "</script><!--<script>"
    assert "\u202e" not in page.inner_text("main")
    assert page.evaluate("document.scripts.length") == 2  # nothing of the text became markup


def test_the_view_can_be_mounted_in_another_page_from_json(browser):
    """As the server's page does: look.js and look.css as files, a look as JSON with nested lists."""
    page = browser.new_context(viewport={"width": 420, "height": 800}).new_page()
    page.set_content("<main><div id=panel></div></main>")
    before = set(page.evaluate("Object.keys(globalThis)"))
    page.add_style_tag(content=look_style())
    page.add_script_tag(content=look_script())
    assert set(page.evaluate("Object.keys(globalThis)")) - before == {"SaccadeLook"}
    assert page.evaluate("Object.keys(SaccadeLook)") == ["mount"]
    look = json.loads(json.dumps(to_dict(LOOK)))
    page.evaluate("look => { globalThis.view = SaccadeLook.mount(panel, look, {header: false}); }", look)
    page.wait_for_selector(".saccade-look[data-drawn]")
    expected = in_words(weights_of(LOOK.paths[0].heads, CROSS))
    assert np.abs(read_back(page) - expected).max() <= CLOSE
    assert page.locator("h1").count() == 0
    for path in look["paths"]:  # the other form that weights may come in
        for head in path["heads"]:
            rows = head["weights"]
            head["weights"] = {"shape": [len(rows), len(rows[0])], "data": [w for row in rows for w in row]}
    page.evaluate("look => { view.update(look); return view.ready; }", look)
    assert np.abs(read_back(page) - expected).max() <= CLOSE
    page.evaluate("view.destroy()")
    assert page.inner_html("#panel") == ""
    page.context.close()


def test_a_model_without_attention_still_shows_its_steps(opened):
    path = LOOK.paths[0]
    page = opened(Look("rnn", LOOK.source, (type(path)(path.target, path.score, path.steps),)))
    page.wait_for_selector(".chip")
    assert "no attention" in page.inner_text(".nothing")


def test_a_text_that_is_only_read_shows_what_the_encoder_looked_at(opened):
    page = opened(Look("reader", LOOK.source, (), LOOK.encoder))
    read = merge_to_words(weights_of(LOOK.encoder, ENCODER), LOOK.source.words, LOOK.source.words)
    assert shows(hover(page, 3, 4), read[3, 4])
    with page.expect_download():
        page.get_by_role("button", name="Save the map as SVG").click()


@pytest.mark.parametrize("folder", ["trained", "second"])
def test_the_page_of_a_real_model_shows_what_was_captured(opened, request, folder):
    look = look_at(saccade.load(request.getfixturevalue(folder)), "January 5, 2021", n_best=2)
    page = opened(look)
    stacks = {head.stack for head in (*look.encoder, *look.paths[0].heads)}
    assert page.get_by_role("radio", name="Side by side").count() == (len(stacks) > 1)
    assert page.locator(".heads").count() == (len(look.paths[0].heads) > 1)
    for number, path in enumerate(look.paths):
        if number:
            redrawn(page, lambda: page.locator(".path input").nth(1).check())
        expected = merge_to_words(weights_of(path.heads, CROSS), path.target.words, look.source.words)
        assert np.abs(read_back(page) - expected).max() <= CLOSE
        assert shows(hover(page, 1, 2), expected[1, 2])


def test_a_notebook_draws_what_is_shown_in_its_frame(browser):
    weights = np.array([[[0.9, 0.1, 0.0], [0.0, 0.25, 0.75]], [[0.2, 0.2, 0.6], [0.5, 0.5, 0.0]]])
    context = browser.new_context(viewport={"width": 900, "height": 1000}, accept_downloads=True)
    page = context.new_page()
    page.set_content(show(weights, ["die", "Katze"], ["the", "black", "cat"], title="cats")._repr_html_())
    frame = page.frame_locator("iframe")
    frame.locator(".thumb[data-head='cross.1.2']").click()
    frame.locator(".heat h2 small", has_text="layer 1, head 2").wait_for()
    size = frame.locator(".map").evaluate("map => parseFloat(map.style.getPropertyValue('--size'))")
    frame.locator(".map").hover(position={"x": 2.5 * size, "y": 0.5 * size}, force=True)
    assert frame.locator(".readout .value").inner_text() == "0.600"
    with page.expect_download() as saved:
        frame.get_by_role("button", name="Save the map as PNG").click()
    assert saved.value.suggested_filename == "attention.png"
    context.close()
