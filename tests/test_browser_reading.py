"""The page for everyone: by keyboard and by ear, on a phone, in the dark, in four languages."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from visiting import TEXT, Open, World, go, settled, shown, visit, world, write

import saccade.looking
from saccade.serving.page import STATIC

if TYPE_CHECKING:
    from playwright.sync_api import Page

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
