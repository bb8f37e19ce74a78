"""The diagnosis of a model, and the page it is put on."""

import json
import re
from collections import Counter
from html.parser import HTMLParser

import pytest
import torch

import saccade
from saccade.analysis.diagnosis import by_frequency, by_length, by_position, by_score, learning_curve
from saccade.analysis.drawing import alignment, bars
from saccade.analysis.flags import Looks, looks_of, repeated

SOURCES = ["January 5, 2021", "Friday, August 9, 1985", "11 May 1999", "June 30, 2008"]
TARGETS = ["5. Januar 2021", "Freitag, 9. August 1985", "11. Mai 1999", "30. Juni 2008"]


@pytest.fixture
def data(tmp_path):
    for name, lines in (("s", SOURCES), ("t", TARGETS)):
        (tmp_path / name).write_text("".join(line + "\n" for line in lines))
    return "--data", tmp_path / "s", tmp_path / "t", "--device", "cpu"


class Checked(HTMLParser):
    """Every tag is closed, in order, and nothing is fetched."""

    VOID = frozenset({"meta", "br", "line", "rect", "polyline", "path"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag, attributes):
        if tag not in ("meta", "br"):
            self.open.append(tag)
        for name, value in attributes:
            assert name not in ("src", "href"), f"{tag} fetches {value}"

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_whole_and_holds_the_numbers_of_the_json(trained, command, data, tmp_path):
    done = command("report", trained, *data, "--out", tmp_path / "page.html")
    assert done.status == 0, done.err
    page = (tmp_path / "page.html").read_text()
    checked = Checked()
    checked.feed(page)
    assert checked.open == []
    assert "http" not in re.sub(r"<title>.*?</title>", "", page)
    numbers = json.loads((tmp_path / "page.json").read_text())["folders"][0]
    assert f"{numbers['scores'][0]['value']:.1f}" in page
    assert len(numbers["sentences"]) == 4
    assert numbers["curve"]["validation loss"]
    translations = [found.text for found in saccade.load(trained).stream(SOURCES)]
    assert [each["translation"] for each in numbers["sentences"]] == translations
    for each in numbers["sentences"]:
        assert all(s < len(each["source"].split()) for s, _, _ in each["links"])
        assert each["links"]


def test_two_folders_stand_side_by_side(trained, second, command, data, tmp_path):
    done = command("report", trained, second, *data, "--out", tmp_path / "page.html")
    assert done.status == 0, done.err
    page = (tmp_path / "page.html").read_text()
    assert page.count('class="key"') >= 4
    assert "is better" in page
    found = json.loads((tmp_path / "page.json").read_text())
    assert [each["name"] for each in found["folders"]] == [str(trained), str(second)]
    assert any("bleu" in line.lower() for line in found["comparison"])


def test_what_is_wrong_is_said(trained, command, data, tmp_path):
    assert "ends in .html" in command("report", trained, *data, "--out", tmp_path / "page.pdf").err
    assert "3 folders" in command("report", trained, trained, trained, *data).err


def test_text_on_the_page_is_text(trained, command, tmp_path):
    (tmp_path / "s").write_text("<b>May</b> & <script>alert(1)</script>\n")
    (tmp_path / "t").write_text("<i>Mai</i>\n")
    done = command("report", trained, "--data", tmp_path / "s", tmp_path / "t", "--out", tmp_path / "page.html")
    assert done.status == 0, done.err
    page = (tmp_path / "page.html").read_text()
    assert "<script>" not in page
    assert "&lt;i&gt;Mai&lt;/i&gt;" in page


def test_scores_are_those_of_the_groups():
    groups = by_length(["a b", "a b c d e f g"], ["x y", "x y z"], ["x y", "q"])
    assert [(group.name, group.size) for group in groups] == [("1–5", 1), ("6–10", 1)]
    assert groups[0].score == 100.0
    assert groups[1].score == 0.0


def test_words_are_counted_by_frequency_and_matched_within_sentences():
    counts = Counter({"common": 500, "rare": 1})
    groups = {g.name: g for g in by_frequency(["common rare", "common"], ["common common", "new"], counts)}
    # Common: two wanted, two written, but the second in the wrong sentence: one match.
    assert groups["100–999"].score == pytest.approx(100 * 2 * 1 / (2 + 2))
    assert groups["1"].score == 0.0
    assert groups["0"].size == 0


def test_positions_are_parts_of_the_reference():
    groups = by_position(["a b c d e f"], ["f e a"])
    assert [group.score for group in groups] == [100.0, 0.0, 0.0, 0.0, 100.0, 100.0]
    assert [group.size for group in by_score([0.0, 5.0, 99.0, 100.0])] == [2, 0, 0, 0, 0, 0, 0, 0, 0, 2]


def test_repetition_is_more_than_the_source_has():
    assert repeated("the cat the cat the cat sat", "die Katze saß") == "the cat"
    assert repeated("no no no no", "nein") == "no"
    assert repeated("a b c d a b c d", "x") == "a b c d"
    assert repeated("very very good", "sehr sehr gut") is None
    assert repeated("5 5 5 5", "5 5 5 5") is None
    assert repeated("", "x") is None


def test_a_model_that_looks_at_the_end_alone_is_called_detached(trained):
    """Keys of cross-attention that prefer the end of the source: all words are ignored."""
    translator = saccade.load(trained, engine="torch")
    before = looks_of(translator, SOURCES, TARGETS)
    assert not any(each.detached for each in before)

    def at_the_end(module, inputs, output):
        weights = torch.zeros_like(output.weights)
        weights[..., -1] = 1.0
        return output._replace(weights=weights)

    handle = translator.model.decoder.layers[-1].cross.register_forward_hook(at_the_end)
    try:
        (found,) = looks_of(translator, SOURCES[:1], TARGETS[:1])
    finally:
        handle.remove()
    assert found == Looks(1.0, 1.0, [0, 1, 2])
    assert found.under
    assert found.flags == ["ignores 100% of the source", "100% of its attention is on the end of the source"]


def test_a_learning_curve_is_what_the_log_says(tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_text('{"step": 10, "loss": 3.5}\n{"step": 10, "valid_loss": 3.0, "valid_bleu": null}\n')
    assert learning_curve(log) == {
        "training loss": [(10, 3.5)],
        "validation loss": [(10, 3.0)],
        "validation BLEU": [],
    }
    assert learning_curve(tmp_path / "none")["training loss"] == []


def test_drawings_hold_what_they_draw():
    drawn = bars(["a", "b"], [[50.0, None], [25.0, 100.0]], [3, 4], "x")
    heights = [float(h) for h in re.findall(r'<rect[^>]* height="([\d.]+)"', drawn)]
    assert len(heights) == 3
    assert heights[2] == pytest.approx(2 * heights[0], rel=0.01)
    assert heights[0] == pytest.approx(2 * heights[1], rel=0.01)
    links = alignment(["x", "y"], ["z"], [(1, 0, 0.9)], [0])
    assert links.count("<path") == 1
    assert "y – z: 0.90" in links
    assert links.count("ignored") == 1
