"""The page in a real Chromium, against a real server: translating, as a reader does it."""

import json
import shutil
from pathlib import Path
from typing import Any

from served import serving, wait_until
from visiting import OTHER, TEXT, WORDS, Open, World, go, lit, settled, shown, visit, world, write

__all__ = ["visit", "world"]  # fixtures


# --- translating


def test_what_is_typed_is_translated_beside_it_as_it_streams(visit: Open, world: World) -> None:
    page = visit()
    page.evaluate(
        "() => { window.seen = []; const output = document.querySelector('.output'); new MutationObserver(() => {"
        " const row = output.querySelector('.writing'); if (row) seen.push(row.textContent) })"
        ".observe(output, { childList: true, subtree: true }) }"
    )
    write(page, TEXT)
    assert shown(page) == world.first.translate(TEXT).text
    seen = page.evaluate("seen")
    assert seen  # a server in a hurry may tell no more than how it begins
    assert seen[0] != shown(page)
    assert page.inner_text("#told") == shown(page)  # said once, when it is whole


def test_lines_are_translated_each_and_one_that_did_not_change_is_not_asked_for_again(
    visit: Open, world: World
) -> None:
    page = visit()
    write(page, f"{TEXT}\n\n{OTHER}")
    rows = page.locator(".pane >> nth=0 >> .output p").all_inner_texts()
    assert [row.strip() for row in rows if row.strip()] == [world.first.translate(text).text for text in (TEXT, OTHER)]
    with page.expect_request("**/v1/translate") as asked:
        page.fill("#source", f"{TEXT}\n\n{OTHER} .")
    assert json.loads(asked.value.post_data)["text"] == [f"{OTHER} ."]


def test_a_request_that_is_no_longer_wanted_is_called_off(visit: Open, world: World) -> None:
    page = visit()
    page.route("**/v1/translate", lambda route: None, times=1)  # never answered
    with page.expect_event("requestfailed") as failed:
        page.fill("#source", OTHER)
        page.wait_for_selector(".output[aria-busy=true]")
        page.fill("#source", TEXT)
    assert "ABORTED" in failed.value.failure
    settled(page)
    assert shown(page) == world.first.translate(TEXT).text


def test_who_does_not_know_what_the_model_knows_is_offered_texts(visit: Open, world: World) -> None:
    page = visit()
    examples = page.locator("#examples button")
    assert examples.count() == 3
    text = examples.nth(1).inner_text()
    examples.nth(1).click()
    settled(page)
    assert page.input_value("#source") == text
    assert shown(page) == world.first.translate(text).text
    assert not page.is_visible("#examples")
    page.click("#clear")
    assert page.is_visible("#examples")
    page.click("#swap")
    assert examples.nth(1).get_attribute("lang") == "de"


def test_clearing_and_copying(visit: Open, world: World) -> None:
    page = visit(permissions=["clipboard-read", "clipboard-write"])
    write(page, TEXT)
    page.click(".copy >> visible=true")
    page.wait_for_function("() => document.getElementById('told').classList.contains('toast')")
    assert page.evaluate("navigator.clipboard.readText()") == world.first.translate(TEXT).text
    page.click("#clear")
    page.wait_for_function("() => !document.querySelector('.output').innerText.trim()")
    assert page.evaluate("document.activeElement.id") == "source"


def test_a_translation_of_another_text_is_neither_copied_nor_taken_for_the_text(visit: Open, world: World) -> None:
    page = visit(permissions=["clipboard-read", "clipboard-write"])
    write(page, TEXT)
    page.route("**/v1/translate", lambda route: None)  # never answered
    page.fill("#source", f"{OTHER}\n{TEXT}")
    page.wait_for_selector(".output[aria-busy=true]")
    page.click(".copy >> visible=true")
    page.wait_for_function("() => document.getElementById('told').classList.contains('toast')")
    copied = page.evaluate("navigator.clipboard.readText()").splitlines()
    assert copied == ["", world.first.translate(TEXT).text]
    page.click("#swap")
    assert page.input_value("#from") == "de"
    assert page.input_value("#source") == f"{OTHER}\n{TEXT}"


def test_what_is_waited_for_is_seen_to_be_on_its_way(visit: Open) -> None:
    page = visit()
    page.route("**/v1/translate", lambda route: None)  # never answered
    page.fill("#source", f"{TEXT}\n{OTHER}")
    page.wait_for_selector(".output[aria-busy=true]")
    carets = "() => [...document.querySelectorAll('.output p')].map((p) => getComputedStyle(p, '::after').content)"
    assert page.evaluate(carets)[:2] == ['""', "none"]


def test_going_back_shows_the_view_before_and_the_text_is_still_there(visit: Open, world: World) -> None:
    page = visit()
    write(page, TEXT)
    for view in ("compare", "files"):
        go(page, view)
    assert page.title() == "Files – Saccade"
    page.go_back()
    page.go_back()
    page.wait_for_selector("body[data-view=translate]")
    assert page.title() == "Translate – Saccade"
    assert (page.input_value("#source"), shown(page)) == (TEXT, world.first.translate(TEXT).text)
    page.go_forward()
    page.wait_for_selector("body[data-view=compare]")


# --- where it looks


def test_pointing_at_a_word_lights_up_what_it_was_written_for_and_the_other_way_round(
    visit: Open, world: World
) -> None:
    page = visit()
    write(page, TEXT)
    translation = world.first.translate(TEXT)
    source, target = translation.source_words, translation.target_words
    assert len(translation.alignment) > 2
    for looked, written in translation.alignment[:3]:
        page.hover(f"{WORDS} >> nth={written}")
        assert lit(page, "#mirror") == [source[looked]]
        assert page.locator("#arcs path").count() == 1
    looked = translation.alignment[0][0]
    box = page.locator("#mirror .word").nth(looked).bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    written_for = [target[written] for other, written in translation.alignment if other == looked]
    assert lit(page, ".pane:not([hidden])") == written_for
    page.mouse.move(2, 700)
    assert lit(page, "body") == []


def test_a_pointer_that_jumps_from_the_text_to_a_word_lights_it_up(visit: Open, world: World) -> None:
    page = visit()
    write(page, TEXT)
    page.hover("#source")
    looked, written = world.first.translate(TEXT).alignment[0]
    page.hover(f"{WORDS} >> nth={written}")
    assert lit(page, "#mirror") == [world.first.translate(TEXT).source_words[looked]]


def test_a_tap_on_a_phone_lights_up_too(visit: Open, world: World) -> None:
    page = visit(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    write(page, TEXT)
    translation = world.first.translate(TEXT)
    looked, written = translation.alignment[0]
    page.tap(f"{WORDS} >> nth={written}")
    assert lit(page, "#mirror") == [translation.source_words[looked]]


def test_the_caret_in_the_text_lights_up_the_translation(visit: Open, world: World) -> None:
    page = visit()
    write(page, TEXT)
    page.focus("#source")
    page.keyboard.press("Home")
    translation = world.first.translate(TEXT)
    expected = [translation.target_words[written] for looked, written in translation.alignment if looked == 0]
    assert lit(page, ".pane:not([hidden])") == expected


def test_every_head_is_seen_in_the_side_panel(visit: Open, world: World) -> None:
    page = visit()
    write(page, TEXT)
    with page.expect_response("**/v1/look") as answer:
        page.click(".see >> visible=true")
    page.wait_for_selector("#look .saccade-look canvas")
    heads = [head for head in answer.value.json()["paths"][0]["heads"] if head["stack"] == "cross"]
    assert len(heads) == world.first.config.model.heads * world.first.config.model.decoder_layers
    assert page.locator(".see >> visible=true").get_attribute("aria-expanded") == "true"
    write(page, OTHER)  # the panel follows the text
    page.wait_for_function("() => document.querySelector('#look').innerText.includes('September')")
    page.keyboard.press("Escape")
    assert not page.is_visible("#look")


def test_two_models_stand_side_by_side_with_their_alignments(visit: Open, world: World) -> None:
    page = visit("#compare")
    write(page, TEXT)
    settled(page, 1)
    for number, translator in enumerate((world.first, world.second)):
        translation = translator.translate(TEXT)
        assert shown(page, number) == translation.text
        pane = page.locator(".pane").nth(number)
        drawn = pane.locator(".links path").evaluate_all(
            "paths => paths.map(({ dataset }) => [Number(dataset.source), Number(dataset.target)])"
        )
        assert [tuple(pair) for pair in drawn] == translation.alignment
    assert "rnn" in page.inner_text(".pane >> nth=1")
    page.hover("#panes .links text.target >> nth=0")
    assert page.locator(".pane >> nth=0 >> .links path.on").count() == 1
    page.select_option(".pane >> nth=1 >> .model", page.input_value(".pane >> nth=0 >> .model"))
    page.wait_for_function("text => document.querySelectorAll('.output')[1].innerText.trim() === text", arg=shown(page))


# --- other words


def percent(share: float) -> str:
    return "< 0.1%" if share < 0.0005 else f"{100 * share:.{0 if share >= 0.0995 else 1}f}".removesuffix(".0") + "%"


def test_a_model_is_not_compared_with_itself(visit: Open, world: World, trained: Path, tmp_path: Path) -> None:
    page = visit("#compare")
    second = page.locator(".pane >> nth=1")
    assert second.is_visible()
    wide = page.locator(".desk").bounding_box()
    page.click("#swap")  # one model alone goes back
    second.wait_for(state="hidden")
    write(page, TEXT)
    alone = page.locator(".pane >> nth=0").bounding_box()
    assert wide is not None
    assert alone is not None
    assert alone["width"] == wide["width"]
    page.click("#swap")
    second.wait_for(state="visible")
    settled(page, 1)
    shutil.copytree(trained, tmp_path / "back")
    config = (tmp_path / "back" / "config.yaml").read_text()
    config = config.replace("source: en", "source: de").replace("target: de", "target: en")
    (tmp_path / "back" / "config.yaml").write_text(config)
    with serving(trained, tmp_path / "back") as served:
        there_and_back = visit("#compare", url=f"{served.url}/")
        there_and_back.wait_for_selector("body[data-view=translate]")
        assert not there_and_back.is_visible("nav a[data-view=compare]")
        there_and_back.close()


def test_another_word_is_chosen_and_the_rest_is_translated_from_there(visit: Open, world: World) -> None:
    page = visit()
    write(page, TEXT)
    words = world.first.translate(TEXT).text.split()
    with page.expect_response("**/v1/alternatives") as answer:
        page.click(f"{WORDS} >> nth=1")
    found = answer.value.json()
    assert json.loads(answer.value.request.post_data)["prefix"] == words[0]
    page.wait_for_selector("#choices [role=menuitem]")
    assert page.locator("#choices b").all_inner_texts() == found["words"]
    said = page.locator("#choices .likely").all_inner_texts()
    assert said == [percent(each) for each in found["probabilities"]]
    other = next(i for i, word in enumerate(found["words"]) if word != words[1])
    with page.expect_request("**/v1/translate") as asked:
        page.click(f"#choices [role=menuitem] >> nth={other}")
    prefix = f"{words[0]} {found['words'][other]}"
    assert json.loads(asked.value.post_data)["prefix"] == [prefix]
    page.wait_for_selector(".output .word.fixed")
    assert shown(page).startswith(prefix)
    assert shown(page) == world.first.translate(TEXT, prefix=prefix).text
    page.click(".free >> visible=true")
    page.wait_for_function("() => !document.querySelector('.word.fixed')")
    settled(page)
    assert shown(page) == world.first.translate(TEXT).text


def test_words_and_their_alternatives_need_no_mouse(visit: Open, world: World) -> None:
    page = visit()
    write(page, TEXT)
    page.keyboard.press("Alt+w")
    page.keyboard.press("ArrowRight")
    second = world.first.translate(TEXT).text.split()[1]
    assert page.evaluate("document.activeElement.textContent") == second
    assert lit(page, "#mirror")
    page.keyboard.press("Enter")
    page.wait_for_selector("#choices [role=menuitem]:focus")
    page.keyboard.press("Escape")
    assert not page.is_visible("#choices")
    assert page.evaluate("document.activeElement.textContent") == second
    page.keyboard.press("Enter")
    page.wait_for_selector("#choices [role=menuitem]:focus")
    page.keyboard.press("End")
    chosen = page.evaluate("document.activeElement.querySelector('b').textContent")
    page.keyboard.press("Enter")
    page.wait_for_selector(".output .word.fixed")
    settled(page)
    page.wait_for_function("word => document.activeElement.textContent === word", arg=chosen.split()[0])


def test_the_keyboard_stays_on_a_word_that_is_written_anew(visit: Open, world: World) -> None:
    page = visit()
    write(page, TEXT)
    page.keyboard.press("Alt+w")
    page.keyboard.press("ArrowRight")
    second = world.first.translate(TEXT).text.split()[1]
    for listed in (True, False, True):  # asked for with and without the list, and known from before
        page.keyboard.press("Alt+n")
        page.wait_for_selector(".best li", state="attached" if listed else "hidden")
        settled(page)
        page.wait_for_function("word => document.activeElement.textContent === word", arg=second)
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("document.activeElement.textContent") == world.first.translate(TEXT).text.split()[0]
    assert page.locator(".output .word[tabindex='0']").count() == 1


def test_more_translations_are_listed_and_one_is_taken(visit: Open, world: World) -> None:
    page = visit()
    write(page, TEXT)
    page.click(".more >> visible=true")
    page.wait_for_selector(".best li")
    expected = list(dict.fromkeys(each.text for each in world.first.translate(TEXT, n_best=5, beam=5).n_best))
    assert page.locator(".best button >> visible=true").all_inner_texts() == expected
    assert len(expected) > 1
    page.click(".best li:nth-child(2) button >> visible=true")
    assert shown(page) == expected[1]
    assert page.locator(".best li:nth-child(2) button >> visible=true").get_attribute("aria-pressed") == "true"


def test_rules_are_kept_and_obeyed(visit: Open, world: World) -> None:
    page = visit()
    write(page, TEXT)
    banned = shown(page).split()[0].strip(",")
    page.click("#open-rules")
    page.fill("#terms input >> nth=0", "July")
    page.fill("#terms input >> nth=1", "Heumonat")
    page.fill("#banned", banned)
    page.fill("#beam", "2")
    page.keyboard.press("Escape")
    page.wait_for_function("() => document.querySelector('.output').innerText.includes('Heumonat')")
    settled(page)
    told: dict[str, Any] = {"glossary": {"July": "Heumonat"}, "banned": [banned], "beam": 2}
    assert shown(page) == world.first.translate(TEXT, **told).text
    assert page.inner_text("#open-rules .badge") == "3"
    page.reload()
    page.wait_for_selector("body[data-ready]")
    write(page, OTHER + " July")
    assert "Heumonat" in shown(page)
    page.click("#open-rules")
    assert page.input_value("#banned") == banned
    with page.expect_request("**/v1/translate") as asked:
        page.fill("#must", "Mai\n\nJuni ")
        page.fill("#length", "0.5")
    told = json.loads(asked.value.post_data)
    assert told["must"] == ["Mai", "Juni"]
    assert told["search"] == {"beam": 2, "length_penalty": 0.5}
    page.click("#forget")
    page.keyboard.press("Escape")
    page.wait_for_function("() => !document.querySelector('.output').innerText.includes('Heumonat')")
    assert not page.is_visible("#open-rules .badge")


def test_a_rule_that_cannot_be_is_marked_and_not_left_behind_unsaid(visit: Open) -> None:
    page = visit()
    page.click("#open-rules")
    edge = "getComputedStyle(document.getElementById('beam')).borderColor"
    page.fill("#beam", "2")
    page.focus("#banned")
    allowed = page.evaluate(edge)
    page.fill("#beam", "99")
    page.focus("#banned")
    assert page.evaluate(edge) != allowed
    page.click("#rules .accent")
    assert page.is_visible("#rules")
    page.fill("#beam", "16")
    page.click("#rules .accent")
    assert not page.is_visible("#rules")


# --- the folder changes while the page is open


def test_a_model_that_is_loaded_anew_translates_what_comes_next_in_a_page_that_stays_open(
    visit: Open, world: World, trained: Path, second: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(trained, tmp_path / "model", ignore=shutil.ignore_patterns("resume", "tensorboard"))
    assert world.first.translate(OTHER).text != world.second.translate(OTHER).text
    with serving(folder, reload_every=0.05) as served:
        page = visit(url=f"{served.url}/")
        page.evaluate("() => { window.opened = true }")
        write(page, TEXT)
        assert shown(page) == world.first.translate(TEXT).text
        (entry,) = served.server.pool.entries.values()
        before = entry.loaded
        for path in second.iterdir():
            if path.is_file():
                shutil.copy2(path, folder / f"{path.name}.new")
                (folder / f"{path.name}.new").replace(folder / path.name)
        wait_until(lambda: entry.loaded is not before and entry.card.family == "rnn")
        page.fill("#source", f"{TEXT}\n{OTHER}")
        # The first line too, which was there already: a text is of one model.
        page.wait_for_function(
            "text => document.querySelector('.output').innerText.trim().replace(/\\n+/g, '\\n') === text",
            arg="\n".join(translation.text for translation in world.second.translate([TEXT, OTHER])),
        )
        assert page.evaluate("window.opened")
        page.context.close()
