"""Fine-tuning with a vocabulary that has grown: what old rows keep, and what new ones begin with."""

import json
import shutil
from itertools import islice

import pytest
import torch

import saccade
from saccade import api
from saccade.config import Config
from saccade.data import builtin
from saccade.data.batching import collate
from saccade.data.extending import learn_pieces, origins, with_terms
from saccade.data.tokenizers import PAD, Tokenizer, Tokenizers
from saccade.errors import SaccadeError
from saccade.folder import CONFIG
from saccade.models.build import build_model, with_shape
from saccade.training import checkpoint
from saccade.training.extension import extended, load_grown, load_moments, new_rows
from saccade.training.optim import make_optimizer

PAIRS = list(islice(builtin.pairs("en", "de", seed=1, split="train"), 200))
SIDES = [side for pair in PAIRS for side in pair]
STEPS = ("training.batch_tokens=256", "training.validate_every=2", "training.average=1")


def grown_by(tokenizers, count=40):
    lines = [side for pair in islice(builtin.pairs("fr", "es", seed=1, split="train"), 200) for side in pair]
    made = [learn_pieces(with_terms(side, ["<BT>"]), lines, count) for side in tokenizers]
    return Tokenizers(made[0], made[0]) if tokenizers.joint else Tokenizers(*made)


def probabilities(model, tokenizers, pairs):
    """p(v | …) at every position of the targets, and which positions are real."""
    ids = [(tokenizers.source.encode(s), tokenizers.target.encode(t)) for s, t in pairs]
    batch = collate(ids, range(len(ids)))
    with torch.no_grad():
        logits = model.eval().logits(model(batch.source, batch.source_mask, batch.inputs).hidden)
    return logits.softmax(-1)[batch.gold != PAD]


FAMILIES = {
    "transformer": ["model.size=tiny"],
    "decoder-only": ["model.size=tiny", "model.wiring=prefix"],
    "separate": ["model.size=tiny", "tokenizer.joint=false"],
    "untied": ["model.size=tiny", "model.tied=none"],
    "rnn": ["model.family=rnn", "model.size=tiny"],
    "conv": ["model.family=conv", "model.size=tiny"],
}


@pytest.mark.parametrize("settings", FAMILIES.values(), ids=FAMILIES.keys())
def test_before_any_step_old_text_loses_just_the_mass_of_the_new_rows(settings, tmp_path):
    """p_new = p_old · (1 - m), and no new piece is likelier than its parts were on average, for every family."""
    config = Config.load(None, settings)
    joint = config.tokenizer.joint is not False
    config = config.model_copy(update={"model": with_shape(config.model, joint)})
    sides = [Tokenizer.train(SIDES[side::2], "bpe", 300) for side in (0, 1)]
    old = Tokenizers(sides[0], sides[0]) if joint else Tokenizers(*sides)
    new = grown_by(old)
    torch.manual_seed(1)
    small = build_model(config, old.source.size, old.target.size)
    large = build_model(config, new.source.size, new.target.size)
    checkpoint.save_weights(checkpoint.weights_of(small), tmp_path / "model.safetensors")
    grown = new_rows(config, old, new)
    load_grown(large, tmp_path, grown, "mean")
    V = old.target.size
    pairs = [p for p in PAIRS if max(new.source.encode(p[0])) < old.source.size and max(new.target.encode(p[1])) < V]
    assert len(pairs) > 3
    before = probabilities(small.double(), old, pairs[:8])
    after = probabilities(large.double(), new, pairs[:8])
    mass = after[:, V:].sum(-1, keepdim=True)
    assert (mass > 0).all()
    torch.testing.assert_close(after[:, :V], before * (1 - mass))
    for piece, parts in enumerate(origins(old.target, new.target)):
        assert (after[:, V + piece] <= before[:, parts].mean(-1) + 1e-12).all()


def test_a_new_row_is_the_mean_of_its_parts_and_old_rows_stay():
    rows = torch.arange(12.0).view(4, 3)
    made = extended(rows, [[0, 2], [3]])
    assert torch.equal(made[:4], rows)
    assert torch.equal(made[4:], torch.tensor([[3.0, 4.0, 5.0], [9.0, 10.0, 11.0]]))


@pytest.fixture(scope="module")
def loaded(trained):
    """The trained folder with a grown vocabulary: config, both vocabularies, and where rows were added."""
    config = Config.load(trained / CONFIG)
    old = Tokenizers.load(trained)
    one = learn_pieces(old.source, SIDES, 60)
    new = Tokenizers(one, one)
    return config, old, new, new_rows(config, old, new)


def test_means_begin_with_a_lower_loss_than_random_rows(trained, loaded):
    config, _, new, grown = loaded
    losses = {"mean": [], "random": []}
    for initial, found in losses.items():
        for seed in range(3):
            torch.manual_seed(seed)
            model = build_model(config, new.source.size, new.target.size)
            load_grown(model, trained, grown, initial)
            translator = saccade.Translator(config, new, model.eval())
            found.append(-sum(translator.score(*map(list, zip(*PAIRS[:60], strict=True)))))
    assert max(losses["mean"]) < 0.9 * min(losses["random"])


def test_old_rows_keep_their_moments_and_new_ones_get_a_share(trained, loaded):
    config, old, new, grown = loaded
    model = build_model(config, new.source.size, new.target.size)
    optimizer = make_optimizer(model, config.training)
    said = load_moments(optimizer, model, trained, grown, None)
    last = checkpoint.latest(trained / "resume")
    assert str(last) in said
    kept = checkpoint.load_tensors(last / "optimizer.safetensors")
    (name,) = grown
    parts = origins(old.source, new.source)
    for key, parameter in model.named_parameters():
        for part, tensor in optimizer.state[parameter].items():
            before = kept[f"adam/{key}/{part}"]
            assert torch.equal(tensor[: len(before)] if tensor.dim() else tensor, before)
    state = optimizer.state[dict(model.named_parameters())[name]]
    assert not state["exp_avg"][old.source.size :].any()
    second = kept[f"adam/{name}/exp_avg_sq"]
    assert torch.allclose(state["exp_avg_sq"][old.source.size], second[parts[0]].mean(0))
    assert state["step"] == 120


def test_moments_that_are_not_there_are_refused_only_if_they_were_asked_for(trained, loaded, tmp_path):
    config, _, new, grown = loaded
    model = build_model(config, new.source.size, new.target.size)
    optimizer = make_optimizer(model, config.training)
    assert load_moments(optimizer, model, tmp_path, grown, None) is None
    assert load_moments(optimizer, model, trained, grown, False) is None
    assert load_moments(optimizer, model, trained, {}, None) is None  # nothing has grown
    assert not optimizer.state
    with pytest.raises(SaccadeError, match=r"training\.keep_moments=true: .* has no checkpoint"):
        load_moments(optimizer, model, tmp_path, grown, True)


@pytest.fixture(scope="module")
def tuned(trained, tiny, tmp_path_factory):
    """A folder that was fine-tuned with a tag, new pieces and a replay."""
    place = tmp_path_factory.mktemp("tuned")
    pairs = list(islice(builtin.pairs("en", "fr", seed=1, split="train"), 120))
    for side, name in enumerate(("en", "fr")):
        (place / f"new.{name}").write_text("".join(f"{pair[side]}\n" for pair in pairs))
    told = [*tiny, *STEPS, "tokenizer.terms=[<BT>]", "tokenizer.new_pieces=30", "data.replay_share=0.25"]
    arguments = [place / "new.en", place / "new.fr", *told]
    saccade.train(*arguments, "training.max_steps=4", out=place / "run", start_from=trained, quiet=True)
    return place / "run", arguments


def test_a_fine_tuned_folder_has_the_new_pieces_and_translates(tuned, trained):
    folder, _ = tuned
    before, after = Tokenizers.load(trained).source, Tokenizers.load(folder).source
    assert after.size == before.size + 31
    translator = saccade.load(folder)
    assert translator.translate("<BT> Thursday").text
    assert after.pieces(after.encode("<BT> Thursday"))[0] == "▁<BT>"


def test_a_tuned_run_that_is_stopped_and_resumed_is_the_run_that_was_not(tuned, trained, tmp_path):
    _, arguments = tuned
    told = [*arguments, "training.schedule=constant", "training.warmup_steps=1", "data.old_valid_pairs=0"]
    for steps, run in ((2, "halved"), (4, "halved"), (4, "whole")):
        saccade.train(*told, f"training.max_steps={steps}", out=tmp_path / run, start_from=trained, quiet=True)
    halved, whole = (
        checkpoint.load_tensors(tmp_path / run / "resume" / "step-00000004" / "model.safetensors")
        for run in ("halved", "whole")
    )
    for name, tensor in whole.items():
        assert torch.equal(halved[name], tensor), name


def test_data_prepared_for_one_folder_are_not_trained_on_from_another_of_other_pieces(trained, tiny, tmp_path):
    told = [*tiny, *STEPS, "training.max_steps=2", "data.old_valid_pairs=0"]
    size = f"tokenizer.vocabulary={Tokenizers.load(trained).source.size}"
    saccade.train(*told, "data.source=fr", "data.target=es", size, out=tmp_path / "other", quiet=True)
    api.prepare(*told, out=tmp_path / "run", start_from=trained, quiet=True)
    sizes = {Tokenizers.load(folder).source.size for folder in (trained, tmp_path / "other")}
    assert len(sizes) == 1, "nothing but the pieces tells them apart"
    with pytest.raises(SaccadeError, match=r"run: was prepared for another folder than --from .*other \(.*en-de\)"):
        saccade.train(*told, out=tmp_path / "run", start_from=tmp_path / "other", quiet=True)
    saccade.train(*told, out=tmp_path / "run", start_from=trained, quiet=True)


def test_a_run_that_was_begun_from_one_folder_does_not_go_on_from_another_of_the_same_pieces(trained, tiny, tmp_path):
    """It would go on with what it has, and be judged beside the other."""
    told = [*tiny, *STEPS, "data.old_valid_pairs=0"]
    saccade.train(*told, "training.max_steps=2", out=tmp_path / "other", start_from=trained, quiet=True)
    shutil.copytree(trained, tmp_path / "first")
    saccade.train(*told, "training.max_steps=2", out=tmp_path / "run", start_from=tmp_path / "first", quiet=True)
    with pytest.raises(SaccadeError, match=r"run: was prepared for another folder than --from .*other \(.*first\)"):
        saccade.train(*told, "training.max_steps=4", out=tmp_path / "run", start_from=tmp_path / "other", quiet=True)
    # The same under another name, and under the same name with other weights, are the same.
    saccade.train(*told, "training.max_steps=4", out=tmp_path / "run", start_from=trained, quiet=True)
    shutil.copy(tmp_path / "other" / "model.safetensors", tmp_path / "first" / "model.safetensors")
    saccade.train(*told, "training.max_steps=5", out=tmp_path / "run", start_from=tmp_path / "first", quiet=True)


def test_the_record_says_what_was_replayed_and_what_was_forgotten(tuned, command):
    folder, _ = tuned
    record = json.loads((folder / "record.json").read_text())
    pairs = record["data"]["train_pairs"]
    assert record["data"]["replay"]["pairs"] == round(pairs / 4)
    assert record["forgetting"]["pairs"] == 20
    assert [score["metric"] for score in record["forgetting"]["scores"]] == ["BLEU", "chrF2"]
    assert all(score["samples"] == 1000 and "nrefs:1" in score["signature"] for score in record["forgetting"]["scores"])
    card = (folder / "README.md").read_text()
    assert "Before → after, on 20 pairs" in card
    assert f"loss {record['forgetting']['loss']['before']:.4f} → {record['forgetting']['loss']['after']:.4f}" in card
    assert "old test" in command("info", folder).out


@pytest.mark.parametrize(
    "setting", ["data.replay_share=0.2", "data.replay=[a.tsv]", "tokenizer.new_pieces=3", "training.keep_moments=true"]
)
def test_settings_of_fine_tuning_need_a_folder_to_tune(setting, tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.tsv").write_text("a\tb\n")
    with pytest.raises(SaccadeError, match=rf"{setting.split('=')[0]}=.*is for fine-tuning.*--from"):
        saccade.train(*tiny, setting, out="run", quiet=True)
