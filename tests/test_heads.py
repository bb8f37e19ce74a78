"""What heads do, what happens without them, and folders that have fewer."""

import json
import shutil

import numpy as np
import pytest
import torch

import saccade
from saccade.analysis.capture import all_weights, silenced
from saccade.analysis.conllu import Sentence, read_conllu
from saccade.analysis.kinds import describe, kinds_of, pair_batches
from saccade.analysis.measures import Pieces, Sums, add_up
from saccade.analysis.prune import prune
from saccade.analysis.silence import Judge, removable, silence
from saccade.analysis.syntax import Relation, _arcs, _best
from saccade.data.batching import collate
from saccade.data.tokenizers import Tokenizer, Tokenizers
from saccade.errors import SaccadeError
from saccade.models.build import build_model, count_parameters
from saccade.models.heads import HeadName, Site, head_names, refuse_to_prune, sites

SOURCES = ["January 5, 2021", "Friday, August 9, 1985", "11 May 1999", "June 30, 2008"]
TARGETS = ["5. Januar 2021", "Freitag, 9. August 1985", "11. Mai 1999", "30. Juni 2008"]


@pytest.fixture(scope="module")
def translator(trained):
    return saccade.load(trained, engine="torch")


@pytest.fixture(scope="module")
def words():
    tokenizer = Tokenizer.train(["a b c d e f g h ."] * 2, "words", 400)
    return Tokenizers(tokenizer, tokenizer)


def planted(stack, weights, words, pairs):
    """The measures of one head that looks as it is told: `weights(batch)` → (B, Q, K)."""
    encoded = [tuple(side.encode(text) for side, text in zip(words, pair, strict=True)) for pair in pairs]
    batch = collate(encoded, range(len(pairs)))
    sums, pieces = Sums(), Pieces.of(words, [batch], torch.device("cpu"))
    add_up(sums, Site(stack, 0), weights(batch).unsqueeze(1), batch, pieces)
    return {name: sums.mean(name)[0] for name in sums.sums}


def looks_at(places, K):
    return torch.nn.functional.one_hot(places.clamp(0, K - 1), K).float()


def test_a_head_planted_on_the_word_before_is_positional(words):
    def weights(batch):
        B, S = batch.source.shape
        return looks_at(torch.arange(S).expand(B, S) - 1, S)

    found = planted("encoder", weights, words, [("a b c d e", "a"), ("f g h", "a")])
    assert found["offset-1"] == 1.0
    assert found["offset+1"] == 0.0
    assert found["entropy"] == 0.0
    # Five and three words with their ends: all but the first look one back, the first can only look at itself.
    assert found["distance"] == pytest.approx((5 + 3) / (6 + 4))


def test_a_head_planted_on_ends_and_signs_is_a_delimiter_head(words):
    def weights(batch):
        B, S = batch.source.shape
        end = (batch.source != 0).sum(1, keepdim=True) - 1
        return 0.75 * looks_at(end.expand(B, S), S) + 0.25 * looks_at(torch.zeros(B, S, dtype=torch.long), S)

    found = planted("encoder", weights, words, [("a b c", "a"), (". b c d", "a")])
    assert found["delimiter"] == pytest.approx((0.75 * 4 + 1.0 * 5) / 9)


def test_a_head_planted_on_the_rarest_word_is_a_rare_word_head(words):
    pairs = [("a a a h", "a"), ("a b a a", "a"), ("a a a a b", "a"), ("a a a a", "a")]  # h once, b twice

    def weights(batch):
        B, S = batch.source.shape
        place = torch.tensor([3, 1, 4, 0])
        return looks_at(place.unsqueeze(1).expand(B, S), S)

    found = planted("encoder", weights, words, pairs)
    assert found["rare"] == 1.0
    assert found["rare by chance"] < 0.5


def test_a_head_planted_on_what_is_written_is_a_copying_head(words):
    """The target is the source backwards; `x` in the target has nothing to be copied from."""

    def weights(batch):
        gold, source = batch.gold, batch.source
        place = (gold.unsqueeze(2) == source.unsqueeze(1)).long().argmax(-1)
        return looks_at(place, source.size(1))

    found = planted("cross", weights, words, [("a b c d", "d c b a"), ("e f g", "g h f e")])
    assert found["copying"] == 1.0
    assert found["copying, read"] < 0.5


def test_heads_planted_in_a_models_weights_are_found_there(words):
    """Queries and keys of one head read positions alone, and ask for the place before: the head is called positional
    from end to end; another sees nothing, and looks everywhere alike."""
    shape = ("width=32", "heads=2", "feed_forward=8", "encoder_layers=1", "decoder_layers=1", "dropout=0", "norm=post")
    config = saccade.config.Config.load(None, [f"model.{each}" for each in (*shape, "tied=none", "key_heads=2")])
    torch.manual_seed(1)
    model = build_model(config, words.source.size, words.target.size).eval()
    attention = model.encoder.layers[0].attention
    table = model.encoder.embedding.positions.table[:64].double()
    with torch.no_grad():
        model.encoder.embedding.table.weight.zero_()
        attention.query_key_value.weight.zero_()
        attention.query_key_value.bias.zero_()
        # The least-squares map that takes a position to the one before it, on the dimensions of one head.
        basis = torch.linalg.svd(table, full_matrices=False).Vh[:16]
        shift = torch.linalg.lstsq(table[1:] @ basis.T, table[:-1] @ basis.T).solution
        attention.query_key_value.weight[:16] = 60 * (basis.T @ shift).T.float()
        attention.query_key_value.weight[32:48] = basis.float()
    translator = saccade.Translator(config, words, model)
    reports = describe(translator, pair_batches(translator, ["a b c d e f", "g h a"], ["a b", "c"]))
    by_name = {str(report.name): report for report in reports}
    assert by_name["encoder 1.1"].kinds[0] == "positional (previous)"
    assert by_name["encoder 1.2"].kinds == ("mixed",)
    assert by_name["encoder 1.2"].entropy == pytest.approx((7 * np.log(7) + 4 * np.log(4)) / 11, rel=1e-5)


def test_captured_weights_are_those_that_the_decoder_returns(translator):
    (batch,) = pair_batches(translator, SOURCES, TARGETS)
    found = all_weights(translator.model, batch)
    with torch.inference_mode():
        returned = translator.model(batch.source, batch.source_mask, batch.inputs, need_weights=True).attentions
    assert set(found) == {Site("encoder", 0), Site("decoder", 0), Site("cross", 0)}
    torch.testing.assert_close(found[Site("cross", 0)], returned[0])
    for weights in found.values():
        assert weights.sum(-1).min() > 0.999
    assert found[Site("decoder", 0)].triu(1).abs().max() == 0


def test_a_head_that_follows_a_relation_beats_the_best_distance():
    """Subjects stand now one, now two before their verbs: no distance is right more than half the time."""
    near = Sentence(["she", "sings"], [1, None], ["nsubj", "root"])
    far = Sentence(["she", "often", "sings"], [2, 2, None], ["nsubj", "advmod", "root"])
    sentences = [near, far] * 20
    follows = {i: np.array([len(s.words) - 1] * len(s.words)) for i, s in enumerate(sentences)}
    best = _best(follows, {"nsubj": _arcs(sentences)["nsubj"]})
    assert best == Relation("nsubj", 1.0, 0.5, 40)
    assert best.tells
    steady = _best({i: np.arange(len(s.words)) + 1 for i, s in enumerate(sentences)}, _arcs(sentences))
    assert not steady.tells


CONLLU = """# text = We're here
1-2\tWe're\t_\t_\t_\t_\t_\t_\t_\t_
1\tWe\twe\tPRON\t_\t_\t3\tnsubj:pass\t_\t_
2\t're\tbe\tAUX\t_\t_\t3\tcop\t_\t_
3\there\there\tADV\t_\t_\t0\troot\t_\t_
3.1\tx\t_\t_\t_\t_\t_\t_\t_\t_

1\tGo\tgo\tVERB\t_\t_\t0\troot\t_\t_
"""


def test_dependencies_are_read(tmp_path):
    path = tmp_path / "a.conllu"
    path.write_text(CONLLU)
    first, second = read_conllu(str(path))
    assert first == Sentence(["We", "'re", "here"], [2, 2, None], ["nsubj", "cop", "root"])
    assert second == Sentence(["Go"], [None], ["root"])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1 Go go", "line 1: 1 fields between tabs, not 10"),
        ("2\tGo\t_\t_\t_\t_\t0\troot\t_\t_", "line 1: word '2' with head '0'"),
        ("1\tGo\t_\t_\t_\t_\t_\troot\t_\t_", "with head '_'"),
        ("1\tGo\t_\t_\t_\t_\t7\tobj\t_\t_", "a head is word 7, but the sentence has 1"),
    ],
)
def test_what_is_wrong_with_dependencies_is_said_by_line(tmp_path, line, message):
    path = tmp_path / "a.conllu"
    path.write_text(line + "\n")
    with pytest.raises(SaccadeError, match=message):
        list(read_conllu(str(path)))


def test_silencing_changes_the_answer_and_leaves_no_trace(translator):
    before = translator.score(SOURCES, TARGETS)
    with silenced(translator.model, [HeadName("cross", 0, 1)]):
        without = translator.score(SOURCES, TARGETS)
    assert np.abs(np.array(before) - without).max() > 1e-3
    assert translator.score(SOURCES, TARGETS) == before


def test_the_pruned_folder_says_what_the_model_with_silenced_heads_says(trained, translator, tmp_path):
    gone = [HeadName("encoder", 0, 1), HeadName("cross", 0, 0)]
    smaller = prune(trained, gone, tmp_path / "pruned")
    assert count_parameters(smaller.model) < count_parameters(translator.model)
    assert {site: module.shape.heads for site, module in sites(smaller.model).items()} == {
        Site("encoder", 0): 1,
        Site("decoder", 0): 2,
        Site("cross", 0): 1,
    }
    with silenced(translator.model, gone):
        wanted = translator.score(SOURCES, TARGETS)
        written = [found.text for found in translator.stream(SOURCES, beam=3)]
    assert smaller.score(SOURCES, TARGETS) == pytest.approx(wanted, abs=1e-4)
    assert [found.text for found in smaller.stream(SOURCES, beam=3)] == written
    size = (tmp_path / "pruned" / "model.safetensors").stat().st_size
    assert size < (trained / "model.safetensors").stat().st_size


def test_a_pruned_folder_is_trained_on_as_any_other(trained, tmp_path, tiny):
    prune(trained, [HeadName("decoder", 0, 0)], tmp_path / "pruned")
    others = [setting for setting in tiny if not setting.startswith("model.")]
    tuned = saccade.train(
        *others, "training.max_steps=1", out=tmp_path / "tuned", start_from=tmp_path / "pruned", quiet=True
    )
    assert sites(tuned.model)[Site("decoder", 0)].shape.heads == 1
    assert sites(saccade.load(tmp_path / "tuned").model)[Site("decoder", 0)].shape.heads == 1


def test_the_last_head_of_an_attention_stays(trained, tmp_path):
    both = [HeadName("cross", 0, 0), HeadName("cross", 0, 1)]
    assert removable([both[1], HeadName("encoder", 0, 0), both[0]]) == [both[1]]
    with pytest.raises(SaccadeError, match="cross 1: all 2 heads would be pruned"):
        prune(trained, both, tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("model.key_heads=1", "model.key_heads=1: heads of encoder 1 share keys and values"),
        ("model.positions=alibi", "model.positions=alibi: its biases belong to numbered heads"),
        ("model.positions=t5", "model.positions=t5"),
        ("model.family=rnn", "no heads to prune"),
    ],
)
def test_what_cannot_be_pruned_is_refused_by_name(setting, message):
    config = saccade.config.Config.load(None, [setting, "model.size=tiny"])
    config = config.model_copy(update={"model": saccade.models.build.with_shape(config.model, joint=True)})
    with torch.device("meta"):
        model = build_model(config, 300, 300)
    with pytest.raises(SaccadeError, match=message):
        refuse_to_prune(model)


def test_heads_are_ordered_by_what_they_cost(translator):
    judge = Judge(translator, SOURCES, TARGETS, beam=1)
    found = silence(judge)
    assert sorted(found.order) == sorted(head_names(translator.model))
    lost = [loss.bleu for loss in found.losses]
    assert lost == sorted(lost)
    assert found.curve[0].bleu == found.bleu
    assert found.curve[-1].silenced == len(removable(found.order)) == 3
    # The last point is what the model says without all of them.
    with silenced(translator.model, removable(found.order)):
        assert found.curve[-1].nll == pytest.approx(-sum(translator.score(SOURCES, TARGETS)) / judge._tokens)


def test_the_command_sorts_silences_prunes_and_compares(trained, command, tmp_path):
    for name, lines in (("s", SOURCES), ("t", TARGETS)):
        (tmp_path / name).write_text("".join(line + "\n" for line in lines))
    (tmp_path / "deps").write_text("1\tJanuary\t_\t_\t_\t_\t0\troot\t_\t_\n2\t5\t_\t_\t_\t_\t1\tnmod\t_\t_\n\n" * 20)
    data = ("--data", tmp_path / "s", tmp_path / "t", "--device", "cpu")
    more = ("--prune", 2, "--out", tmp_path / "out", "--agreement", 2, "--conllu", tmp_path / "deps", "--json")
    done = command("heads", trained, *data, *more)
    assert done.status == 0, done.err
    answer = json.loads(done.out)
    assert len(answer["heads"]) == 6
    assert answer["heads"][0]["relation"]["arcs"] == 20
    assert answer["heads"][2]["relation"] is None  # of the decoder
    before, after = answer["pruned"]["parameters"]
    assert after < before
    assert len(answer["agreement"]) == 6
    assert saccade.load(tmp_path / "out").translate("11 May 1999").text is not None
    shown = command("heads", trained, *data, "--silence")
    assert "cross 1.2" in shown.out
    assert "BLEU lost" in shown.out
    shutil.rmtree(tmp_path / "out")
    refused = command("heads", trained, *data, "--prune", 4, "--out", tmp_path / "out")
    assert refused.status == 2
    assert "at most 3 heads can go" in refused.err


def test_a_model_without_heads_is_refused_by_name(second, command, tmp_path):
    (tmp_path / "s").write_text("May\n")
    done = command("heads", second, "--data", tmp_path / "s", tmp_path / "s")
    assert done.status == 2
    assert "model.family=rnn" in done.err


def test_a_head_of_several_kinds_has_the_most_telling_first(translator):
    report = describe(translator, pair_batches(translator, SOURCES, TARGETS))[0]
    full = dict(report.__dict__, offsets={"previous": 0.95, "diagonal": 0.0, "next": 0.0}, delimiter=0.6, relation=None)
    assert kinds_of(type(report)(**full))[0] == "positional (previous)"
    assert "delimiter" in kinds_of(type(report)(**full))
