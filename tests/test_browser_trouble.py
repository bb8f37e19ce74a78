"""The page when things go wrong, in a real Chromium: what it says, and how it goes on."""

import json
from typing import TYPE_CHECKING

import pytest
from visiting import OTHER, TEXT, Open, World, settled, shown, visit, world, write

if TYPE_CHECKING:
    from playwright.sync_api import Route

__all__ = ["visit", "world"]  # fixtures


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
