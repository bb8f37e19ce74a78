"""Files, runs that are watched and keys, on the page in a real Chromium."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from served import serving
from visiting import OTHER, TEXT, Open, World, go, shown, visit, world, write

from saccade.folder import WEIGHTS, load

__all__ = ["visit", "world"]  # fixtures


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
