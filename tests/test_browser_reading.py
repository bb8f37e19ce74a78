"""The page for everyone: by keyboard and by ear, on a phone, in the dark, in four languages; and when things fail."""

import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from served import serving
from visiting import OTHER, TEXT, Open, World, go, settled, shown, visit, world, write

import saccade.looking
from saccade.folder import WEIGHTS, load
from saccade.serving.page import STATIC

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

__all__ = ["visit", "world"]  # fixtures

VIEWER = Path(saccade.looking.__file__).parent / "static"
VIEWS = ("#translate", "#compare", "#files", "#run")
NAMED = {"button", "link", "textbox", "combobox", "spinbutton", "menuitem", "dialog", "navigation", "checkbox", "radio"}


def axes(page: "Page") -> list[dict[str, Any]]:
    """What a screen reader is told, node by node."""
    nodes = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]
    return [node for node in nodes if not node.get("ignored")]


def nameless(page: "Page") -> list[str]:
    found = [node for node in axes(page) if node["role"]["value"] in NAMED]
    return [node["role"]["value"] for node in found if not node.get("name", {}).get("value", "").strip()]


# --- for everyone


def test_every_control_has_a_name_and_every_part_a_landmark(visit: Open) -> None:
    page = visit("#compare")
    write(page, TEXT)
    settled(page, 1)
    page.click(".more >> nth=0")
    page.wait_for_selector(".best li")
    page.click(".output .word[role] >> nth=1")
    page.wait_for_selector("#choices [role=menuitem]")
    assert nameless(page) == []
    page.keyboard.press("Escape")
    roles = [node["role"]["value"] for node in axes(page)]
    assert {"banner", "navigation", "main", "heading"} <= set(roles)
    for dialog in ("rules", "help"):
        page.click(f"#open-{dialog}")
        assert nameless(page) == []
        page.keyboard.press("Escape")
        assert page.evaluate("document.activeElement.id") == f"open-{dialog}"
    page.goto(page.url.replace("#compare", "#files"))
    assert nameless(page) == []


def test_a_screen_reader_is_told_what_belongs_together(visit: Open, world: World) -> None:
    page = visit("#compare", locale="de")
    write(page, TEXT)
    settled(page, 1)
    nodes = [
        (node["role"]["value"], node.get("name", {}).get("value"), node.get("description", {}).get("value"))
        for node in axes(page)
    ]
    for translator in (world.first, world.second):
        translation = translator.translate(TEXT)
        source, target = translation.source_words, translation.target_words
        for word, text in enumerate(target):
            read = [source[looked] for looked, written in translation.alignment if written == word]
            assert ("button", text, f"Geschrieben für: {' '.join(read)}" if read else None) in nodes
        drawn = "; ".join(f"{target[written]}: {source[looked]}" for looked, written in translation.alignment)
        assert ("image", drawn, None) in nodes
    regions = [name for role, name, _ in nodes if role == "region" and name.startswith("Übersetzung: ")]
    assert len(set(regions)) == 2  # by the names of their models
    page.select_option("#tongue", "fr")
    page.wait_for_function("() => document.querySelector('.word[aria-description^=Écrit]')")


def test_the_tab_key_goes_through_all_in_order_and_focus_is_seen(visit: Open) -> None:
    page = visit()
    write(page, TEXT)
    page.focus(".skip")
    stops: list[str] = []
    for _ in range(40):
        at = page.evaluate(
            "() => { const { id, className, tagName } = document.activeElement;"
            " const style = getComputedStyle(document.activeElement);"
            " return [id || String(className) || tagName, parseFloat(style.outlineWidth) > 0 && style.outlineStyle] }"
        )
        if at[0] == "BODY" or at[0] in stops[:1]:
            break
        stops.append(at[0])
        assert at[0] == "source" or at[1] not in (False, "none"), f"focus on {at[0]} is not seen"
        page.keyboard.press("Tab")
    wanted = ["skip", "brand", "open-rules", "theme", "open-help", "tongue", "from", "swap", "to", "source", "clear"]
    known = [stop for stop in stops if stop in wanted]
    assert known == [each for each in wanted if each in known]
    assert {"skip", "open-rules", "source", "clear", "more", "see", "copy"} <= set(stops)
    assert sum(stop.startswith("word") for stop in stops) == 1  # all words together are one stop


def test_on_a_phone_the_side_panel_keeps_the_keyboard_from_what_it_covers(visit: Open) -> None:
    page = visit(viewport={"width": 390, "height": 844})
    write(page, TEXT)
    page.focus(".see >> visible=true")
    page.keyboard.press("Enter")
    page.wait_for_selector("#look .saccade-look canvas")
    outside = "!!document.activeElement.closest('main, .top, .skip')"
    page.keyboard.press("Shift+Tab")
    assert not page.evaluate(outside)
    page.set_viewport_size({"width": 1280, "height": 844})  # there it lies beside the text
    page.wait_for_selector("main:not([inert])")
    page.focus("#source")
    assert page.evaluate(outside)
    page.set_viewport_size({"width": 390, "height": 844})
    page.wait_for_selector("main[inert]")
    page.keyboard.press("Escape")
    assert "see" in page.evaluate("document.activeElement.className")


def test_shortcuts_are_listed_and_work(visit: Open) -> None:
    page = visit()
    write(page, TEXT)
    page.keyboard.press("Alt+/")
    page.wait_for_selector("#help[open]")
    assert page.locator("#keys dt").count() == page.locator("#keys dd").count() > 8
    page.keyboard.press("Escape")
    page.keyboard.press("Alt+n")
    page.wait_for_selector(".best li")
    page.keyboard.press("Alt+g")
    page.wait_for_selector("#rules[open]")
    page.keyboard.press("Escape")
    page.keyboard.press("Alt+x")
    assert page.input_value("#source") == ""
    page.keyboard.press("Alt+m")
    page.wait_for_selector("body[data-view=compare]")


def luminance(colour: str) -> float:
    red, green, blue = (float(part) / 255 for part in re.findall(r"[\d.]+", colour)[:3])
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in (red, green, blue)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_colours_can_be_read(visit: Open) -> None:
    page = visit()
    pairs = [(ink, ground) for ground in ("ground", "card") for ink in ("ink", "soft", "accent", "mark")]
    pairs += [("ink", "wash"), ("accent", "wash"), ("on-accent", "accent")]
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        colours = page.evaluate(
            "pairs => { const probe = document.createElement('i'); document.body.append(probe);"
            " return pairs.map((pair) => pair.map((name) => { probe.style.color = `var(--${name})`;"
            " return getComputedStyle(probe).color })) }",
            pairs,
        )
        for (ink, ground), (front, back) in zip(pairs, colours, strict=True):
            light, dark = sorted((luminance(front), luminance(back)), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= 4.5, f"{ink} on {ground} in {scheme}: {front} on {back}"


def test_light_and_dark_follow_the_system_until_one_is_chosen(visit: Open) -> None:
    page = visit(color_scheme="dark")
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    dark = page.evaluate(ground)
    page.emulate_media(color_scheme="light")
    light = page.evaluate(ground)
    assert luminance(dark) < 0.1 < 0.8 < luminance(light)
    page.click("#theme")
    assert page.evaluate(ground) == dark
    page.reload()
    assert page.evaluate(ground) == dark


def test_who_wants_no_motion_gets_none(visit: Open) -> None:
    page = visit(reduced_motion="reduce")
    write(page, TEXT)
    moving = "() => document.getAnimations().length"
    page.hover(".output .word >> nth=0")
    assert page.evaluate(moving) == 0
    assert page.evaluate("getComputedStyle(document.querySelector('.output p')).transitionDuration") in ("0s", "")


def test_nothing_is_wider_than_the_screen(visit: Open) -> None:
    page = visit(locale="de")
    write(page, TEXT)
    for view in VIEWS:
        page.evaluate("view => { location.hash = view }", view)
        page.wait_for_selector(f"body[data-view={view[1:]}]" + (" .sample canvas" if view == "#run" else ""))
        for width in (320, 390, 768, 1440):
            page.set_viewport_size({"width": width, "height": 740})
            assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{view} at {width}"
    page.set_viewport_size({"width": 320, "height": 740})
    page.evaluate("location.hash = 'translate'")
    page.click(".see >> visible=true")
    page.wait_for_selector("#look .saccade-look canvas")
    assert page.evaluate("document.getElementById('look').scrollWidth") <= 320
    page.click("#close-look")
    page.click("#open-rules")
    assert page.evaluate("document.getElementById('rules').getBoundingClientRect().right") <= 320


def test_texts_from_right_to_left_are_written_so(visit: Open) -> None:
    page = visit()
    page.fill("#source", "مرحبا بالعالم")
    assert page.evaluate("getComputedStyle(document.getElementById('source')).direction") == "rtl"
    assert page.evaluate("getComputedStyle(document.querySelector('#mirror div')).direction") == "rtl"


# --- four languages


def test_all_four_languages_say_everything(visit: Open) -> None:
    page = visit()
    labels: dict[str, dict[str, str]] = page.evaluate(
        "async () => { const found = {}; for (const { value } of document.getElementById('tongue').options)"
        " found[value] = (await import(`./static/labels/${value}.js`)).default; return found }"
    )
    assert set(labels) == {"en", "de", "fr", "zh"}
    for code, words in labels.items():
        assert list(words) == list(labels["en"]), code
        for key, value in words.items():
            assert value.strip(), f"{code}.{key}"
            assert re.findall(r"\{\w+\}", value) == re.findall(r"\{\w+\}", labels["en"][key]), f"{code}.{key}"
    used: set[str] = set()
    for path in [STATIC / "index.html", *(STATIC / "page").glob("*.js")]:
        for found in re.findall(r'\bt\("(\w+)"|data-(?:label|aria|title|placeholder)="(\w+)"', path.read_text()):
            used |= set(filter(None, found))
    assert len(used) > 50
    assert used <= set(labels["en"])


def test_the_head_by_head_view_says_everything_in_all_four_languages(visit: Open) -> None:
    page = visit(locale="de")
    script = (VIEWER / "labels.js").read_text()
    labels: dict[str, dict[str, str]] = page.evaluate(f"() => {{ {script}; return LABELS }}")
    assert set(labels) == {"en", "de", "fr", "zh"}
    for code, words in labels.items():
        assert list(words) == list(labels["en"]), code
        for key, value in words.items():
            assert value.strip(), f"{code}.{key}"
            assert sorted(re.findall(r"\{\w+\}", value)) == sorted(re.findall(r"\{\w+\}", labels["en"][key])), key
    write(page, TEXT)
    page.click(".see >> visible=true")
    page.wait_for_selector("#look .saccade-look canvas")
    page.click("#look .told summary")
    page.hover("#look .heat .map")
    said = (
        "() => [...document.querySelectorAll('.saccade-look, .saccade-look *')].flatMap((each) =>"
        " [each.ariaLabel, each.title, each.getAttribute('aria-roledescription'),"
        " ...[...each.childNodes].filter((node) => node.nodeType === 3).map((node) => node.data)]"
        ").filter(Boolean).map((text) => text.trim())"
    )
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    for code in ("de", "fr", "zh"):
        page.select_option("#tongue", code)
        page.wait_for_function(
            "word => document.querySelector('#look').innerText.includes(word)", arg=labels[code]["add"]
        )
        page.hover("#look .heat .map")
        told = set(page.evaluate(said))
        assert {labels[code][key] for key in ("cross", "layer", "mean", "heads", "links", "steps", "smaller")} <= told
        own = {value for value in labels["en"].values() if value not in labels[code].values()}
        assert own & told == set(), f"in English in {code}"
    assert not [url for url in asked if "/v1/" in url]  # what is known is not asked for again


@pytest.mark.parametrize(("locale", "word"), [("de-AT", "Vergleichen"), ("fr-CA", "Comparer"), ("zh-CN", "对比")])
def test_the_browsers_language_is_spoken(visit: Open, locale: str, word: str) -> None:
    page = visit(locale=locale)
    assert page.inner_text("nav a[data-view=compare]") == word
    assert page.evaluate("document.documentElement.lang") == locale[:2]
    assert page.title().endswith(" – Saccade")
    go(page, "compare")
    page.wait_for_function("word => document.title === `${word} – Saccade`", arg=word)


@pytest.mark.parametrize(
    ("locale", "said"),
    [
        ("en", ("1 character", "2 characters")),
        ("de", ("1 Zeichen", "2 Zeichen")),
        ("fr", ("1 caractère", "2 caractères")),
        ("zh", ("1 个字符", "2 个字符")),
    ],
)
def test_one_is_not_several(visit: Open, locale: str, said: tuple[str, str]) -> None:
    page = visit(locale=locale)
    for text, wanted in zip(("a", "ab"), said, strict=True):
        page.fill("#source", text)
        assert page.inner_text("#count") == wanted


def test_numbers_are_written_as_the_reader_writes_them(visit: Open) -> None:
    page = visit(locale="de")
    write(page, TEXT)
    page.click(".more >> visible=true")
    page.wait_for_selector(".best li")
    assert re.fullmatch(r"−?\d+,\d\d", page.inner_text(".best .score >> nth=0"))


def test_another_language_can_be_chosen_and_stays(visit: Open) -> None:
    page = visit(locale="ja")
    assert page.inner_text("nav a[data-view=compare]") == "Compare"
    page.select_option("#tongue", "fr")
    page.wait_for_function("() => document.documentElement.lang === 'fr'")
    assert page.get_attribute("#source", "placeholder") == "Saisissez ou collez un texte"
    assert "français" not in page.inner_text("#from")
    page.reload()
    page.wait_for_selector("body[data-ready]")
    assert page.inner_text("nav a[data-view=files]") == "Fichiers"


# --- languages of the models


def test_languages_are_swapped_and_the_translation_becomes_the_text(visit: Open, world: World) -> None:
    page = visit()
    write(page, TEXT)
    assert page.input_value("#from") == "en"
    before = shown(page)
    page.click("#swap")
    assert (page.input_value("#from"), page.input_value("#to")) == ("de", "en")
    assert page.input_value("#source") == before
    assert page.input_value(".model >> nth=0") == "de-en"


def test_the_language_of_a_text_is_found(visit: Open, world: World) -> None:
    page = visit()
    page.select_option("#from", "auto")
    page.select_option("#to", "de")
    page.fill("#source", "This is the house of my father and of my mother, and we have been there for a long time.")
    page.wait_for_function("() => document.getElementById('detected').textContent.includes('English')")
    settled(page)
    assert page.input_value(".model >> nth=0") == "en-de"


# --- files, runs, keys


def test_a_file_goes_in_and_its_translation_comes_out(visit: Open, world: World) -> None:
    page = visit("#files")
    page.set_input_files(
        "#file", {"name": "dates.txt", "mimeType": "text/plain", "buffer": f"{TEXT}\n{OTHER}\n".encode()}
    )
    with page.expect_download() as download:
        page.click("#jobs a[download]")
    assert download.value.suggested_filename == "dates.de.txt"
    lines = Path(download.value.path()).read_text().splitlines()
    assert lines == [world.first.translate(text).text for text in (TEXT, OTHER)]


def test_files_that_are_dropped_are_translated_each_by_the_languages_that_are_said(visit: Open, world: World) -> None:
    page = visit()

    def said(how: str) -> None:
        page.wait_for_function("how => document.getElementById('how').innerText === how", arg=how)

    page.select_option("#from", "de")
    go(page, "files")
    said("German → English")
    go(page, "translate")
    page.click("#swap")
    go(page, "files")
    said("English → German")
    page.click("#open-rules")
    page.fill("#banned", "Mai")
    page.keyboard.press("Escape")
    said("English → German · glossary and rules hold for typed texts only")
    page.evaluate(
        "([text, html]) => { const dataTransfer = new DataTransfer();"
        " dataTransfer.items.add(new File([text], 'a.txt')); dataTransfer.items.add(new File([html], 'b.html'));"
        " document.getElementById('drop').dispatchEvent(new DragEvent('drop', { dataTransfer, bubbles: true })) }",
        [TEXT, f"<p>{OTHER}</p>"],
    )
    page.wait_for_function("() => document.querySelectorAll('#jobs a[download]').length === 2")
    made = {}
    for link in page.locator("#jobs a[download]").all():
        with page.expect_download() as download:
            link.click()
        made[download.value.suggested_filename] = Path(download.value.path()).read_text().strip()
    assert made == {
        "a.de.txt": world.first.translate(TEXT).text,
        "b.de.html": f"<p>{world.first.translate(OTHER).text}</p>",
    }


def test_a_file_that_cannot_be_read_is_refused_in_words(visit: Open) -> None:
    page = visit("#files", troubled=True)
    page.set_input_files("#file", {"name": "a.docx", "mimeType": "application/zip", "buffer": b"no zip"})
    page.wait_for_selector("#jobs .bad")
    assert page.inner_text("#jobs .bad").strip()


def test_a_run_is_watched_as_it_trains(visit: Open, world: World) -> None:
    page = visit("#run")
    page.wait_for_selector(".chart polyline")
    rows = [json.loads(line) for line in (world.watched / "log.jsonl").read_text().splitlines()]
    trained = [row for row in rows if "loss" in row]
    assert f"{trained[-1]['step']}" in page.inner_text("#run-state")
    page.wait_for_selector(".sample canvas")
    points = page.get_attribute(".chart >> nth=0 >> polyline.second", "points") or ""
    assert len(points.split()) == len(trained)
    with open(world.watched / "log.jsonl", "a") as log:
        log.write(json.dumps(trained[-1] | {"step": 987, "loss": 0.5}) + "\n")
    page.wait_for_function("() => document.getElementById('run-state').textContent.includes('987')")
    with open(world.watched / "log.jsonl", "a") as log:
        log.write(json.dumps(trained[-1] | {"step": 4000, "loss": 0.4}) + "\n")
    page.wait_for_function("() => [...document.querySelectorAll('.chart text')].some((x) => x.textContent == '4,000')")
    right = "(x) => x.getBBox().x + x.getBBox().width - x.ownerSVGElement.viewBox.baseVal.width"
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 800})
        letters = page.eval_on_selector(
            ".chart", "(x) => parseFloat(getComputedStyle(x.querySelector('text')).fontSize) * x.getScreenCTM().a"
        )
        assert letters > 9.5, f"at {width} pixels the numbers of a curve are too small to read"
    beyond = page.evaluate(f"() => Math.max(...[...document.querySelectorAll('.chart text')].map({right}))")
    assert beyond <= 0, "a number at the end of a curve is cut off"


def test_attention_is_seen_as_it_sharpens(visit: Open, world: World) -> None:
    page = visit("#run")
    page.wait_for_selector(".sample canvas")
    known = sorted((world.watched / "resume").glob("step-*"))
    first = page.locator(".sample >> nth=0")
    page.wait_for_function("wanted => document.querySelectorAll('.sample b').length >= wanted", arg=len(known))
    steps = [int(step.replace(",", "")) for step in first.locator("b").all_inner_texts()]
    assert steps == sorted(steps)
    shutil.copytree(known[-1], world.watched / "resume" / "making")
    # Whole at once, as a run does.
    (world.watched / "resume" / "making").rename(world.watched / "resume" / "step-00999999")
    page.wait_for_function("() => [...document.querySelectorAll('.sample b')].some((b) => b.innerText === '999,999')")
    source = first.locator(".source").inner_text()
    drawn = first.locator("canvas >> nth=-1").evaluate(
        "canvas => { const { width, height } = canvas; const { data } = canvas.getContext('2d')"
        ".getImageData(0, 0, width, height); return [...Array(height).keys()].map((y) =>"
        " [...Array(width).keys()].map((x) => data[(y * width + x) * 4 + 3] / 255)) }"
    )
    [translation] = load(world.watched, "cpu", weights=known[-1] / WEIGHTS).stream([source])
    attention = translation.word_attention
    assert attention is not None
    assert np.shape(drawn) == attention.shape
    assert np.allclose(drawn, attention, atol=0.01)


def test_the_newest_attention_is_in_sight_and_stays_where_it_was_scrolled_to(visit: Open, world: World) -> None:
    page = visit("#run", viewport={"width": 390, "height": 844})
    kept = len(list((world.watched / "resume").glob("step-*")))
    page.wait_for_function("kept => document.querySelectorAll('.sample:last-child b').length >= kept", arg=kept)
    row = page.locator(".moments >> nth=0")
    page.wait_for_function(
        "() => { const row = document.querySelector('.moments'); return row.scrollWidth > row.clientWidth &&"
        " row.scrollLeft >= row.scrollWidth - row.clientWidth - 1 }"
    )
    row.focus()
    row.evaluate("(row) => { row.scrollLeft = 7; row.seen = true }")
    line = json.loads((world.watched / "log.jsonl").read_text().splitlines()[0])
    with open(world.watched / "log.jsonl", "a") as log:
        log.write(json.dumps(line | {"step": 5432, "loss": 0.5}) + "\n")
    page.wait_for_function("() => document.getElementById('run-state').textContent.includes('5,432')")
    page.wait_for_function("() => [...document.querySelectorAll('.chart text')].some((x) => x.textContent == '4,000')")
    assert row.evaluate("(row) => [row.seen, row === document.activeElement, row.scrollLeft]") == [True, True, 7]
    page.click("#theme")  # colours are those of the theme, so all is drawn anew
    page.wait_for_function("() => !document.querySelector('.moments').seen")
    assert row.evaluate("(row) => row.scrollLeft") == 7


def test_a_curve_that_begins_at_nothing_is_numbered_from_0(visit: Open, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "log.jsonl").write_text(json.dumps({"step": 50, "valid_loss": 3.7, "valid_bleu": 0.2655}) + "\n")
    with serving(watch=run) as served:
        page = visit(url=f"{served.url}/")
        page.wait_for_selector(".chart >> nth=1")
        assert page.locator(".chart >> nth=1 >> text").all_text_contents()[:4] == ["0", "0.25", "0.5", "0.75"]
        page.close()  # before the server is gone


def test_a_run_that_cannot_translate_yet_is_watched_until_it_can(visit: Open, trained: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    with serving(watch=run) as served:
        page = visit("", url=f"{served.url}/")
        page.wait_for_selector("body[data-view=run]")
        assert not page.is_visible("nav a[data-view=translate]")
        shutil.copytree(trained, run, dirs_exist_ok=True)
        page.wait_for_selector(".sample canvas")
        go(page, "translate")
        write(page, TEXT)
        assert shown(page)


def test_a_key_is_asked_for_and_used(visit: Open, trained: Path, tmp_path: Path, command: Any) -> None:
    keys = tmp_path / "keys.json"
    key = command("keys", "add", "--name", "reader", "--file", keys).out.strip()
    with serving(trained, keys=keys) as served:
        page = visit(url=f"{served.url}/", troubled=True, ready=False)
        page.wait_for_selector("#key-box[open]")
        assert not page.is_visible("#key-refused")
        assert not page.is_visible(".pane >> nth=1"), "there is nothing to compare yet"
        page.fill("#key", "sk-wrong")
        page.keyboard.press("Enter")
        page.wait_for_selector("#key-box[open] #key-refused")
        page.fill("#key", key)
        page.keyboard.press("Enter")
        page.wait_for_selector("body[data-ready]")
        write(page, TEXT)
        assert shown(page)
        page.click("#open-key")
        assert not page.is_visible("#key-refused"), "it is a good one"


# --- when things go wrong


@pytest.mark.parametrize("status", [429, 503, 200])
def test_a_busy_server_is_asked_again_when_it_says(visit: Open, world: World, status: int) -> None:
    page = visit(troubled=True)

    def busy(route: "Route") -> None:
        if status == 200:  # the answer had begun
            problem = json.dumps({"error": "too many", "status": 503, "retry_after": 1})
            route.fulfill(content_type="text/event-stream", body=f"event: error\ndata: {problem}\n\n")
        else:
            route.fulfill(status=status, headers={"Retry-After": "1"}, json={"error": "too many"})

    page.route("**/v1/translate", busy, times=1)
    page.fill("#source", TEXT)
    page.wait_for_selector(".problem:visible")
    assert page.inner_text(".problem >> nth=0").startswith("The server is busy. Trying again in 1 s.")
    settled(page)
    assert shown(page) == world.first.translate(TEXT).text
    assert not page.is_visible(".problem")


def test_an_answer_that_is_cut_off_is_asked_for_again(visit: Open, world: World) -> None:
    page = visit()
    part = json.dumps({"index": 0, "text": "Dienstag"})
    begun = f"event: part\ndata: {part}\n\n"
    page.route("**/v1/translate", lambda route: route.fulfill(content_type="text/event-stream", body=begun), times=1)
    page.fill("#source", TEXT)
    page.wait_for_selector(".problem:visible")
    assert page.inner_text(".problem >> nth=0").startswith("The answer was cut off. Trying again in 2 s.")
    assert page.locator(".output .writing").count() == 0  # nobody writes
    page.wait_for_selector(".problem", state="hidden")
    settled(page)
    assert shown(page) == world.first.translate(TEXT).text


def test_a_line_that_is_refused_is_named_and_the_others_are_translated(visit: Open, world: World) -> None:
    page = visit(troubled=True)
    write(page, TEXT)
    page.fill("#source", f"{TEXT}\n\n{'ÿ' * 2_100}\n{OTHER}\n{'ÿ' * 2_200}")
    page.wait_for_selector(".problem:visible")
    assert page.inner_text(".problem >> nth=0").startswith("line 3: a sentence of 2,100 characters")
    rows = [row.strip() for row in page.locator(".pane >> nth=0 >> .output p").all_inner_texts()]
    assert rows == [world.first.translate(TEXT).text, "", "", world.first.translate(OTHER).text, ""]


def test_a_problem_is_seen_in_a_long_text_and_nothing_of_an_older_text_beside_it(visit: Open) -> None:
    page = visit(troubled=True)
    write(page, TEXT)
    page.click(".more >> visible=true")
    page.wait_for_selector(".best li")
    page.route("**/v1/translate", lambda route: route.fulfill(status=400, json={"error": "must: too long"}))
    page.fill("#source", f"{OTHER}\n" * 100)
    page.wait_for_selector(".problem:visible")
    page.evaluate("scrollTo(0, 300)")
    box = page.locator(".problem >> nth=0").bounding_box()
    assert box is not None
    assert box["y"] >= 0
    assert box["y"] + box["height"] <= 800
    assert not page.is_visible(".best")


def test_a_server_that_is_away_is_waited_for(visit: Open, world: World) -> None:
    page = visit(troubled=True)
    page.context.set_offline(True)
    page.fill("#source", TEXT)
    page.wait_for_selector(".problem:visible")
    assert "cannot be reached" in page.inner_text(".problem >> nth=0")
    page.context.set_offline(False)  # and the browser says so
    settled(page)
    assert shown(page) == world.first.translate(TEXT).text


def test_too_much_is_refused_with_the_servers_own_words(visit: Open) -> None:
    page = visit(troubled=True)
    assert page.get_attribute("#source", "maxlength") == "5000"  # no one types more, but older pages may be open
    page.evaluate("document.getElementById('source').removeAttribute('maxlength')")
    page.fill("#source", "word " * 1_200)
    page.wait_for_selector(".problem:visible")
    assert "more than" in page.inner_text(".problem >> nth=0")
    assert page.locator(".problem >> nth=0").get_attribute("role") == "alert"


def test_a_rule_that_cannot_be_kept_is_explained(visit: Open) -> None:
    page = visit(troubled=True)
    page.route("**/v1/translate", lambda route: route.fulfill(status=400, json={"error": "must: too long"}), times=1)
    page.fill("#source", TEXT)
    page.wait_for_selector(".problem:visible")
    assert "must: too long" in page.inner_text(".problem >> nth=0")
