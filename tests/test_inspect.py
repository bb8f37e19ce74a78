"""A look at a sentence: in Python, in the terminal, as JSON, as a picture, in a notebook."""

import json
import math
import sys
import threading
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from rich.console import Console

import saccade
from saccade.analysis.capture import all_weights
from saccade.analysis.look import look_at
from saccade.config import Config
from saccade.data.batching import collate
from saccade.errors import SaccadeError
from saccade.looking.json import from_json, to_dict, to_json
from saccade.looking.look import CROSS, DECODER, ENCODER, STACKS, HeadWeights, Look, Path, Side, Step
from saccade.looking.maps import alignment_map, head_map, heads_of
from saccade.looking.pictures import draw_look as draw_picture
from saccade.looking.pictures import save_look
from saccade.looking.svg import heat_map_svg
from saccade.looking.telling import draw_look
from saccade.models.build import build_model, with_shape
from saccade.models.heads import Site
from saccade.translation import alignment_of

SENTENCE = "January 5, 2021"


@pytest.fixture(scope="module")
def translator(trained):
    return saccade.load(trained)


@pytest.fixture(scope="module")
def look(translator):
    return translator.inspect(SENTENCE, n_best=3)


def test_a_look_has_what_search_found_with_its_scores(translator, look):
    (found,) = translator.stream([SENTENCE], n_best=3)
    assert [path.target.text for path in look.paths] == [each.text for each in found.n_best]
    for path, each in zip(look.paths, found.n_best, strict=True):
        assert path.score == pytest.approx(each.score, abs=1e-4)
        assert list(path.target.pieces) == [*each.tokens, "<eos>"]
        assert math.log(math.prod(step.probability for step in path.steps)) == pytest.approx(path.score, abs=1e-4)
    assert look.model == "en-de", "the name of its folder"
    assert look.facts["family"] == "transformer"
    assert look.facts["attentions"][CROSS] == {"layers": 1, "heads": 2}


def test_pieces_and_words_end_with_the_end(look):
    side = look.source
    assert side.pieces[-1] == side.word_texts[-1] == "<eos>"
    assert side.words[-1] == len(side.word_texts) - 1
    assert side.word_texts[:-1] == ("January", "5,", "2021")
    assert len(side.pieces) == len(side.words)


def test_the_likeliest_pieces_are_named_in_order_and_the_best_is_what_greedy_search_writes(translator):
    look = translator.inspect(SENTENCE, beam=1, alternatives=4, guard=False)
    (path,) = look.paths
    for piece, step in list(zip(path.target.pieces, path.steps, strict=True))[:-1]:  # its end may be that of its room
        likelihoods = [p for _, p in step.alternatives]
        assert len(likelihoods) == 4
        assert likelihoods == sorted(likelihoods, reverse=True)
        assert step.alternatives[0] == (piece, pytest.approx(step.probability, abs=1e-6))


def test_weights_of_each_path_are_those_of_its_own_forced_decoding(translator, look):
    tokenizers = translator.tokenizers
    source = tokenizers.source.encode(SENTENCE)
    for path in look.paths:
        batch = collate([(source, tokenizers.target.encode(path.target.text))], [0])
        if tokenizers.target.pieces(batch.gold[0].tolist()) != list(path.target.pieces):
            continue  # written in other pieces than those that it would be cut into
        wanted = all_weights(translator.model, batch)
        for head in heads_of(look) if path is look.paths[0] else path.heads:
            of_site = wanted[Site(head.stack, head.layer - 1)]
            np.testing.assert_allclose(head.weights, of_site[0, head.head - 1], atol=1e-6)
    assert {head.stack for head in look.encoder} == {ENCODER}
    assert {head.stack for head in look.paths[0].heads} == {DECODER, CROSS}
    assert all(head.weights.dtype == np.float32 for head in heads_of(look))


def test_a_given_target_is_looked_at_as_it_is(translator):
    given = "5.  Januar 2021"
    look = look_at(translator, SENTENCE, given)
    (path,) = look.paths
    assert path.target.text == given
    assert look.facts["forced"]
    assert path.score == pytest.approx(translator.score([SENTENCE], [given])[0], abs=1e-4)
    assert look_at(translator, SENTENCE, "").paths[0].target.pieces == ("<eos>",)


def test_only_the_chosen_heads_are_captured(translator):
    look = translator.inspect(SENTENCE, layers=[1], heads=[2], stacks=["cross", "encoder"])
    assert [(head.stack, head.layer, head.head) for head in heads_of(look)] == [(ENCODER, 1, 2), (CROSS, 1, 2)]


def test_the_alignment_is_that_of_the_translation(translator, look):
    (found,) = translator.stream([SENTENCE], n_best=3)
    for number, translation in enumerate(found.n_best):
        drawn = alignment_map(look, number)
        assert drawn.rows == tuple(translation.target_words)
        assert drawn.columns == tuple(translation.source_words)
        np.testing.assert_allclose(drawn.weights, translation.word_attention, atol=1e-6)
        pieces = alignment_map(look, number, words=False)
        np.testing.assert_allclose(pieces.weights, alignment_of(translation.attentions)[:-1, :-1], atol=1e-6)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"text": " "}, "the text is blank, so there is nothing to look at; give a sentence"),
        ({"layers": [2]}, "layer 2: the model has layers 1 to 1 that attend"),
        ({"layers": [0]}, "layer 0: the model has layers 1 to 1"),
        ({"heads": [1, 3]}, "head 3: these layers have heads 1 to 2"),
        ({"stacks": ["sideways"]}, "stack 'sideways' is not known; use encoder, decoder, cross"),
        ({"n_best": 0}, "n_best=0"),
    ],
)
def test_what_cannot_be_looked_at_is_refused_by_name(translator, asked, message):
    with pytest.raises(SaccadeError, match=message):
        look_at(translator, **{"text": SENTENCE} | asked)


@pytest.mark.parametrize("wiring", ["encoder-decoder", "causal"])
def test_a_sentence_that_the_model_cannot_hold_is_refused_by_name(translator, wiring):
    shape = ["model.width=16", "model.heads=2", "model.decoder_layers=1"]
    config = Config.load(None, [*shape, f"model.wiring={wiring}", "model.positions=learned", "model.max_positions=80"])
    config = config.model_copy(update={"model": with_shape(config.model, joint=True)})
    tokenizers = translator.tokenizers
    model = build_model(config, tokenizers.source.size, tokenizers.target.size).eval()
    translator = saccade.Translator(config, tokenizers, model)
    assert translator.inspect(SENTENCE, SENTENCE).model == "en-de", "its languages, where it has no folder"
    long = "January 5, 2021 " * 20
    pieces = len(translator.tokenizers.source.encode(long)) + (1 if wiring == "encoder-decoder" else 2)
    said = f"the text has {pieces} pieces, ends counted, and the model holds 80 \\(model.max_positions\\)"
    with pytest.raises(SaccadeError, match=said):
        translator.inspect(long)
    with pytest.raises(SaccadeError, match=r"the target .*the model holds 80"):
        translator.inspect("May", "January 5, 2021 " * 20)


def test_a_sentence_longer_than_search_takes_is_looked_at_all_the_same(trained):
    short = saccade.load(trained)
    short.config = short.config.with_changes({"search": {"max_source": 4}})
    assert short.inspect(SENTENCE).paths


def test_threads_look_at_the_same_time(translator, look):
    found = {}

    def work(number):
        found[number] = translator.inspect(SENTENCE, n_best=3)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for each in found.values():
        assert [path.target for path in each.paths] == [path.target for path in look.paths]
        for path in range(3):
            for ours, its in zip(heads_of(look, path), heads_of(each, path), strict=True):
                np.testing.assert_allclose(ours.weights, its.weights, atol=1e-6)


def test_another_family_is_looked_at_alike(second):
    with pytest.raises(SaccadeError, match="stack encoder: the model attends in cross alone; choose of these"):
        saccade.load(second).inspect(SENTENCE, stacks=["encoder"])
    look = saccade.load(second).inspect(SENTENCE)
    (head,) = heads_of(look)
    assert (head.stack, head.layer, head.head) == (CROSS, 1, 1)
    np.testing.assert_allclose(head.weights.sum(1), 1, atol=1e-5)


# JSON

letters = st.text(max_size=4)
unit = st.floats(0, 1, width=32)


@st.composite
def sides(draw):
    pieces = draw(st.lists(letters, max_size=3))
    ended = (*pieces, "<eos>")
    return Side(draw(letters), ended, tuple(range(len(ended))), ended)


@st.composite
def some_heads(draw, stacks, rows, columns):
    number = st.integers(1, 9)
    values = arrays(np.float32, (rows, columns), elements=unit | st.just(math.nan))
    one = st.builds(HeadWeights, st.sampled_from(stacks), number, number, values)
    return tuple(draw(st.lists(one, max_size=2)))


@st.composite
def looks(draw):
    source = draw(sides())
    S, paths = len(source.pieces), []
    for _ in range(draw(st.integers(0, 2))):
        target = draw(sides())
        T = len(target.pieces)
        step = st.builds(Step, unit, st.lists(st.tuples(letters, unit), max_size=2).map(tuple))
        steps = tuple(draw(st.lists(step, min_size=T, max_size=T)))
        heads = draw(some_heads([CROSS], T, S)) + draw(some_heads([DECODER], T, T))
        paths.append(Path(target, draw(st.floats(-99, 0)), steps, heads))
    facts = draw(st.dictionaries(letters, letters | st.integers() | st.booleans(), max_size=2))
    return Look(draw(letters), source, tuple(paths), draw(some_heads([ENCODER], S, S)), facts)


@settings(max_examples=30, deadline=None)
@given(look=looks())
def test_a_look_comes_back_from_json_as_it_was_written(look):
    text = to_json(look)
    back = from_json(text)
    assert to_json(back) == text
    assert back.source == look.source
    assert back.facts == look.facts
    assert [path.target for path in back.paths] == [path.target for path in look.paths]
    for ours, theirs in zip(look.encoder, back.encoder, strict=True):
        assert (ours.stack, ours.layer, ours.head) == (theirs.stack, theirs.layer, theirs.head)
        np.testing.assert_allclose(theirs.weights, ours.weights, atol=6e-6)
        assert theirs.weights.dtype == np.float32
    for ours, theirs in zip(look.paths, back.paths, strict=True):
        assert theirs.score == pytest.approx(ours.score, abs=1e-6)
        for mine, its in zip(ours.steps, theirs.steps, strict=True):
            assert its.probability == pytest.approx(mine.probability, abs=1e-6)
            assert [piece for piece, _ in its.alternatives] == [piece for piece, _ in mine.alternatives]


def test_half_a_character_does_not_break_json():
    side = Side("\ud800", ("<eos>",), (0,), ("<eos>",))
    assert from_json(to_json(Look("x", side, ()))).source.text == "?"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense", "a.json: not JSON"),
        ("[]", "a.json: version=None of a look, and this Saccade reads 1"),
        ('{"version": 7}', "version=7"),
        ('{"version": 1, "model": "x"}', r"a.json: not a look \(KeyError: 'source'\)"),
    ],
)
def test_what_is_not_a_look_is_refused_by_name(text, message):
    with pytest.raises(SaccadeError, match=message):
        from_json(text, "a.json")


def test_an_unknown_stack_is_refused(look):
    given = to_dict(look)
    given["encoder"][0]["stack"] = "sideways"
    with pytest.raises(SaccadeError, match="stack='sideways' is none of encoder, decoder, cross"):
        from_json(json.dumps(given))


# the terminal


def said(look, *heads):
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(draw_look(look, heads))
    return console.export_text()


def test_the_terminal_shows_alignment_probabilities_and_paths(look):
    text = said(look)
    first = look.paths[0]
    assert first.target.text in text
    assert "┌ January" in text
    assert "[]=strongest" in text
    assert f"{first.steps[0].probability:.3f}" in text
    assert f"{look.paths[2].score:.3f}" in text


def test_a_chosen_head_is_drawn_piece_by_piece(look):
    head = next(head for head in look.paths[0].heads if head.stack == DECODER)
    text = said(look, head)
    assert "decoder self-attention, layer 1, head 1" in text
    assert "┌ <bos>" in text
    drawn = head_map(look, head)
    assert drawn.columns == ("<bos>", *look.paths[0].target.pieces[:-1])
    assert drawn.weights.shape == (len(drawn.rows), len(drawn.columns))


def test_a_model_without_attention_says_so(look):
    bare = Look(look.model, look.source, (Path(look.paths[0].target, -1.0, look.paths[0].steps),))
    assert "has no attention" in said(bare)


def test_a_path_without_words_is_not_called_a_model_without_attention(translator):
    assert "Nothing was written" in said(translator.inspect(SENTENCE, ""))


# the command


def test_the_command_draws_in_the_terminal(command, trained):
    done = command("inspect", trained, SENTENCE, "--n-best", 2)
    assert done.status == 0, done.err
    assert "strongest" in done.out
    assert "log-probability" in done.out
    assert "self-attention" not in done.out
    done = command("inspect", trained, SENTENCE, "--layer", "1", "--head", "2", "--stack", "encoder")
    assert "encoder self-attention, layer 1, head 2" in done.out
    assert "head 1" not in done.out
    done = command("inspect", trained, SENTENCE, "--stack", "all", "--head", "all", "--target", "Mai")
    assert done.out.count(", layer 1, head ") == 6


def test_the_command_prints_json_that_reads_back(command, trained):
    done = command("inspect", trained, SENTENCE, "--n-best", 2, "--json")
    assert done.status == 0, done.err
    look = from_json(done.out)
    assert len(look.paths) == 2
    assert {head.stack for head in heads_of(look)} == set(STACKS)
    done = command("inspect", trained, SENTENCE, "--json", "--stack", "cross,decoder", "--head", "1")
    assert [(head.stack, head.head) for head in heads_of(from_json(done.out))] == [(DECODER, 1), (CROSS, 1)]


def test_the_command_writes_the_page_and_the_picture(command, trained, tmp_path):
    page, picture = tmp_path / "look.html", tmp_path / "look.png"
    done = command("inspect", trained, SENTENCE, "--html", page, "--png", picture)
    assert done.status == 0, done.err
    assert done.out.splitlines() == [str(picture), str(page)]
    text = page.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    assert "en-de" in text
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_picture_of_a_path_has_its_alignment_and_every_head(look, tmp_path):
    save_look(look, tmp_path / "look.svg", path=1)
    drawn = (tmp_path / "look.svg").read_text()
    assert drawn.count("<image") == 7 + 1, "the alignment, six heads, and the scale"
    for shown in ("January", "encoder 1", "head 2", look.paths[1].target.word_texts[0]):
        assert f">{shown}<" in drawn


def test_one_head_alone_is_drawn_large(translator, tmp_path):
    look = translator.inspect(SENTENCE, layers=[1], heads=[2], stacks=["decoder"])
    save_look(look, tmp_path / "head.svg")
    drawn = (tmp_path / "head.svg").read_text()
    assert "decoder self-attention, layer 1, head 2" in drawn
    assert "&lt;bos&gt;" in drawn


def test_a_picture_of_nothing_is_refused(look):
    bare = Look(look.model, look.source, (Path(look.paths[0].target, -1.0, look.paths[0].steps),))
    with pytest.raises(SaccadeError, match="there is nothing to draw: the model has no attention"):
        draw_picture(bare)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--head", "first"], "--head first: give all, a number, or numbers with commas between them"),
        (["--layer", "5"], "layer 5: the model has layers 1 to 1"),
        (["--png", "look.bmp"], "look.bmp: the end of the name says the format"),
        (["--html", "look.txt"], "--html look.txt: the page is an HTML file"),
        (["--path", "2"], "--path 2: there is only --n-best 1 to choose from"),
    ],
)
def test_the_command_refuses_by_name(command, trained, arguments, message):
    done = command("inspect", trained, SENTENCE, *arguments)
    assert done.status == 2
    assert message in done.err


def test_a_picture_without_matplotlib_says_what_to_install(command, trained, monkeypatch, translator):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    done = command("inspect", trained, SENTENCE, "--png", "look.png")
    assert done.status == 2
    assert "look.png: figures need matplotlib; run: pip install 'saccade[plots]'" in done.err
    with pytest.raises(SaccadeError, match="pictures need matplotlib; run: pip install"):
        translator.translate(SENTENCE).plot()


# notebooks


def test_a_translation_plots_its_alignment(translator):
    translation = translator.translate(SENTENCE)
    figure = translation.plot()
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == translation.source_words
    assert [label.get_text() for label in axes.get_yticklabels()] == translation.target_words
    np.testing.assert_allclose(axes.images[0].get_array(), translation.word_attention)


def test_a_notebook_shows_text_and_weights_and_nothing_that_the_text_says(translator):
    shown = translator.forced("<script>alert(1)</script> & 'you' \x07", '"><img src=x>')._repr_html_()
    root = ElementTree.fromstring(shown)
    tags = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert tags == {"div", "p", "small", "svg", "text", "rect", "title"}
    assert "&lt;script&gt;" in shown
    assert "http" not in shown.replace("http://www.w3.org/2000/svg", "")
    assert translator.translate("")._repr_html_() == "<div><p> <small>0.00</small></p></div>"


def test_a_heat_map_as_svg_says_every_weight():
    svg = heat_map_svg([[0.25, math.nan], [0.0, 1.0]], ["a", "b"], ["c", "d" * 40], "two words")
    root = ElementTree.fromstring(svg)
    cells = [element for element in root if element.tag.endswith("rect")]
    assert [cell.get("fill-opacity") for cell in cells] == ["0.280", "0.040", "0.040", "1.000"]
    assert cells[0][0].text == "a – c: 0.250"
    large = heat_map_svg(np.zeros((90, 80)), ["w"] * 90, ["w"] * 80, "many")
    assert large.count("<rect") == 64 * 64
