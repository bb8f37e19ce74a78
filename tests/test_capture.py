"""Weights that are captured are those that the model would have computed, of every mechanism and on every road."""

import threading
from collections import Counter
from dataclasses import dataclass, field

import pytest
import torch
from models_under_test import MODELS, make, sentences
from torch.utils._python_dispatch import TorchDispatchMode

import saccade.analysis.capture as capture
from saccade.analysis.capture import Wanted, all_weights, capturing, check_wanted, encoder_weights
from saccade.analysis.mechanisms import heads_of
from saccade.attention.core import attend
from saccade.attention.watching import WATCHES
from saccade.config import Config
from saccade.data.batching import collate
from saccade.errors import SaccadeError
from saccade.generation.ensemble import Ensemble
from saccade.generation.loop import generate
from saccade.generation.search import Beam
from saccade.models import classifier, conv, lm, lstmn, rnn
from saccade.models.build import build_model, with_shape
from saccade.models.decoder_only import DecoderOnly
from saccade.models.heads import HeadName, Site, leave_heads, sites
from saccade.models.lm import Attentive
from saccade.models.lstmn import LSTMNDecoder, LSTMNLayer
from saccade.models.protocol import SharedState

every_model = pytest.mark.parametrize("name", MODELS)
NONE = ("bytenet", "rnn cho", "rnn cho, bidirectional", "rnn sutskever", "rnn rctm", "lm ngram")
# Windows and scores that differ from row to row, where all rows are asked for at once.
UNFED = ["model.family=rnn", "model.embedding=12", "model.width=10", "model.wiring=luong", "model.input_feeding=false"]
MORE = {
    "diagonal": [*UNFED, "model.score=diagonal"],
    "local-m": [*UNFED, "model.window=local-m", "model.window_radius=2"],
    "local-p": [*UNFED, "model.window=local-p", "model.window_radius=3"],
}


def pairs(lengths=((5, 4), (3, 6), (7, 2))):
    sources, targets = (list(side) for side in zip(*lengths, strict=True))
    both = zip(sentences(sources), sentences(targets, seed=2), strict=True)
    return collate(list(both), range(len(lengths)))


def lively(settings):
    torch.manual_seed(0)
    config = Config.load(None, settings)
    config = config.model_copy(update={"model": with_shape(config.model, joint=True)})
    model = build_model(config, 20, 20).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2).add_(torch.randn_like(parameter) * 0.4)
    return model


@pytest.fixture
def unfused(monkeypatch):
    """Runs a model as it runs, and asks each `attend` once more for its weights: {id of the score: a tensor a call}."""
    asked: dict[int, list[torch.Tensor]] = {}
    awake = []

    def spy(*inputs, **options):
        if not awake:
            return attend(*inputs, **options)
        weights = attend(*inputs, **options | {"need_weights": True, "dropout": 0.0}).weights
        asked.setdefault(id(options["score"]), []).append(weights)
        return attend(*inputs, **options)

    for module in ("saccade.attention.multihead", *(room.__name__ for room in (rnn, conv, lm, lstmn, classifier))):
        monkeypatch.setattr(f"{module}.attend", spy)

    def run(model, batch):
        asked.clear()
        awake.append(True)
        with torch.inference_mode():
            model(batch.source, batch.source_mask, batch.inputs)
        awake.clear()
        return dict(asked)

    return run


def expected(model, batch, asked):
    """What `unfused` found of self-attention, by stack and layer."""
    S, found = batch.source.size(1), {}
    real = batch.source_mask
    for site, module in sites(model).items():
        (weights,) = asked[id(module.score)]
        if not isinstance(model.decoder, DecoderOnly):
            found[site] = weights
            continue
        # Padding was moved to the left: row by row back to where it was.
        whole, inside = torch.zeros_like(weights), real.sum(1).tolist()
        for row, n in enumerate(inside):
            to = [*range(n), *range(S, weights.size(2))]
            came = [*range(S - n, S), *range(S, weights.size(2))]
            whole[row][:, torch.tensor(to)[:, None], torch.tensor(to)] = weights[row][
                :, torch.tensor(came)[:, None], torch.tensor(came)
            ]
        found[Site("encoder", site.layer)] = whole[:, :, :S, :S]
        found[Site("decoder", site.layer)] = whole[:, :, S:, S:]
    if isinstance(model.decoder, LSTMNDecoder):
        for stack, half in (("encoder", model.encoder), ("decoder", model.decoder)):
            for number, layer in enumerate(m for m in half.modules() if isinstance(m, LSTMNLayer)):
                steps = asked[id(layer.score)]
                weights = torch.zeros(len(real), 1, len(steps), len(steps) + 1, dtype=steps[-1].dtype)
                for t, step in enumerate(steps):
                    weights[:, :, t, : step.size(-1)] = step[:, :, 0]
                if stack == "decoder":  # where the encoder ended, then the inputs
                    weights[..., 1] += weights[..., 0]
                    weights = weights[..., 1:]
                found[Site(stack, number)] = weights[..., : len(steps)]
    if isinstance(getattr(model.decoder, "look_back", None), Attentive):
        (weights,) = asked[id(model.decoder.look_back.score)]
        found[Site("decoder", 0)] = weights[..., S:]
    return found


def assert_as_unfused(model, batch, unfused, dtype_tolerance=1e-6):
    asked = unfused(model, batch)
    captured = all_weights(model, batch)
    with torch.inference_mode():
        returned = model(batch.source, batch.source_mask, batch.inputs, need_weights=True).attentions or ()
    wanted = expected(model, batch, asked)
    wanted |= {Site("cross", layer): weights for layer, weights in enumerate(returned)}
    assert set(captured) == set(wanted)
    for site, weights in wanted.items():
        found = captured[site]
        if isinstance(model.encoder, classifier.SentenceMatrix):
            assert found.size(2) == 1, "one row, which is that of every step"
            found = found.expand_as(weights)
        if isinstance(model.decoder, DecoderOnly) and site.stack == "encoder":
            rows = batch.source_mask[:, None, :, None]
            found, weights = found * rows, weights * rows  # what padding looks at is of no account
        torch.testing.assert_close(found, weights, rtol=0, atol=dtype_tolerance, msg=lambda m, s=site: f"{s}: {m}")


@every_model
@pytest.mark.parametrize("blocks", [False, True], ids=["whole", "in blocks"])
def test_captured_weights_equal_the_unfused(name, blocks, unfused, monkeypatch):
    if blocks:
        monkeypatch.setattr(capture, "CELLS", 50)  # two rows of a head, or one
    assert_as_unfused(make(name), pairs(), unfused)


@every_model
def test_captured_weights_equal_the_unfused_in_single_precision(name, unfused):
    """From the same inputs; those of a later layer, which the fused kernel rounds otherwise, are not the same ones."""
    model = make(name, lively=1.0).float()
    batch = pairs()
    asked = unfused(model, batch)
    wanted = expected(model, batch, asked)
    captured = all_weights(model, batch)
    for site, weights in wanted.items():
        if not isinstance(model.decoder, DecoderOnly) or site.stack == "decoder":
            torch.testing.assert_close(captured[site], weights, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", MORE)
@pytest.mark.parametrize("cells", [2**22, 20])
def test_rows_that_differ_keep_their_own_window_in_blocks(name, cells, unfused, monkeypatch):
    monkeypatch.setattr(capture, "CELLS", cells)
    assert_as_unfused(lively(MORE[name]), pairs(), unfused)


def test_pruned_heads_are_captured_as_they_are_left(unfused):
    model = make("transformer pre-norm")
    leave_heads(model, {"encoder": [2, 1], "decoder": [3, 4], "cross": [1, 2]})
    model.double().eval()
    assert_as_unfused(model, pairs(), unfused)
    assert heads_of(model)[Site("encoder", 1)] == 1


@every_model
def test_rows_add_up_to_one_where_they_should(name):
    model, batch = make(name), pairs(((6, 5),))
    found = all_weights(model, batch)
    if name in NONE:
        assert found == {}
        return
    sums: dict[int, torch.Tensor] = {}
    shared = isinstance(model.decoder, DecoderOnly) or isinstance(getattr(model.decoder, "look_back", None), Attentive)
    for site, weights in found.items():
        total = weights.sum(-1)
        if shared and site.stack != "encoder":
            sums[site.layer] = sums.get(site.layer, 0) + total
        elif "local-p" not in name:
            first = 1 if site.stack == "encoder" and "lstmn" in name else 0  # before the first word there is nothing
            torch.testing.assert_close(total[:, :, first:], torch.ones_like(total[:, :, first:]))
    for total in sums.values():
        torch.testing.assert_close(total, torch.ones_like(total))


def test_the_models_without_attention_have_nothing_to_capture():
    for name in NONE:
        assert heads_of(make(name)) == {}


@every_model
def test_only_what_is_wanted_is_computed(name):
    model, batch = make(name), pairs()
    everything = all_weights(model, batch)
    for site, weights in everything.items():
        for head in {0, weights.size(1) - 1}:
            wanted = Wanted([site.stack], [site.layer], [head])
            with torch.inference_mode(), capturing(model, batch.source_mask, wanted) as found:
                model(batch.source, batch.source_mask, batch.inputs)
            ((named, one),) = found.items()
            assert named == HeadName(*site, head)
            torch.testing.assert_close(one, weights[:, head])


def test_an_ensemble_is_captured_layer_after_layer():
    members = [make("rnn bahdanau"), make("lm attention", seed=1), make("transformer pre-norm", seed=2)]
    batch = pairs()
    found = all_weights(Ensemble(members).eval(), batch)
    apart = [all_weights(member, batch) for member in members]
    assert len(found) == sum(map(len, apart))
    torch.testing.assert_close(found[Site("cross", 0)], apart[0][Site("cross", 0)])
    torch.testing.assert_close(found[Site("cross", 1)], apart[1][Site("cross", 0)])
    torch.testing.assert_close(found[Site("encoder", 3)], apart[2][Site("encoder", 1)])


def test_a_layer_or_head_that_is_not_there_is_refused_by_name():
    model = make("transformer pre-norm")
    with pytest.raises(SaccadeError, match="layer 3: the model has layers 1 to 2"):
        check_wanted(model, Wanted(layers=[2]))
    with pytest.raises(SaccadeError, match="head 5: these layers have heads 1 to 4"):
        check_wanted(model, Wanted(heads=[0, 4]))
    check_wanted(make("rnn rctm"), Wanted(layers=[7]))  # nothing to capture, and nothing to refuse


def test_another_thread_is_not_watched():
    model, batch = make("transformer pre-norm"), pairs()
    with torch.inference_mode(), capturing(model, batch.source_mask) as found:
        other = threading.Thread(target=lambda: model(batch.source, batch.source_mask, batch.inputs))
        other.start()
        other.join()
    assert found == {}


def test_capturing_ends_when_the_run_fails():
    model, batch = make("transformer pre-norm"), pairs()
    with pytest.raises(RuntimeError, match="stop"), capturing(model, batch.source_mask):
        raise RuntimeError("stop")
    assert not WATCHES


class Made(TorchDispatchMode):
    """How large the tensors are that operations make; a view makes none."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: Counter[int] = Counter()

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        made = function(*arguments, **options or {})
        given = {x.untyped_storage().data_ptr() for x in arguments if isinstance(x, torch.Tensor)}
        for x in made if isinstance(made, tuple | list) else [made]:
            if isinstance(x, torch.Tensor) and x.untyped_storage().data_ptr() not in given:
                self.sizes[x.untyped_storage().nbytes()] += 1
        return made


@pytest.mark.parametrize("name", ["transformer pre-norm", "convs2s"])
def test_one_head_of_4096_tokens_takes_bounded_memory(name):
    """Beside what the run itself makes: one matrix, which was asked for, and blocks of rows."""
    tokens = 4096
    model = make(name) if name != "convs2s" else lively([*MODELS[name], "model.max_positions=5000"])
    model = model.float()
    batch = collate([(sentences([tokens - 1])[0], sentences([15], seed=2)[0])], [0])

    def run():
        with torch.inference_mode(), Made() as made:
            if name == "convs2s":
                model(batch.source, batch.source_mask, batch.inputs)
            else:
                model.encode(batch.source, batch.source_mask)
        return made.sizes

    plain = run()
    stack = "cross" if name == "convs2s" else "encoder"
    with capturing(model, batch.source_mask, Wanted([stack], [0], [0])) as found:
        watched = run()
    ((_, weights),) = found.items()
    rows = batch.inputs.size(1) if name == "convs2s" else tokens
    assert weights.shape == (1, rows, tokens)
    matrix, block = rows * tokens * 4, 4 * capture.CELLS
    extra = watched - plain
    assert sum(count for size, count in extra.items() if size > block) == (1 if matrix > block else 0)
    assert max(extra) <= max(matrix, block)
    if name == "transformer pre-norm":
        assert max(plain) < block < matrix, "the run itself never holds the weights"
        with torch.inference_mode():
            q = torch.tensor([0, 2047, 4095])
            whole = encoder_rows(model, batch, q)
        torch.testing.assert_close(weights[0][q], whole, rtol=0, atol=1e-6)


def encoder_rows(model, batch, rows):
    """Some rows of the first head of the first layer, by hand."""
    layer = model.encoder.layers[0]
    x = layer.around_attention.enter(model.encoder.embedding(batch.source))
    attention = layer.attention
    q, k, _ = attention.split(attention.query_key_value(x), 4, 4, 4)
    return (q[0, 0][rows] @ k[0, 0].mT * q.size(-1) ** -0.5).softmax(-1)


@dataclass(frozen=True)
class Trail:
    """A state that remembers what each row has written and where it looked, through all that search does to it."""

    state: object
    rows: list = field(default_factory=list)  # of each: (token, cross-attention of all layers) a step

    def select(self, indices):
        return type(self)(self.state.select(indices), [self.rows[i] for i in indices.tolist()])


class SharedTrail(Trail):
    """The same for a state that beams share."""

    def beams(self, size):
        return SharedTrail(self.state.beams(size), [row for row in self.rows for _ in range(size)])

    def follow(self, parents):
        # Parents are rows of the same beam, numbered as they were before others were let go.
        size = self.state.size
        rows = [self.rows[i // size * size + parent % size] for i, parent in enumerate(parents.tolist())]
        return SharedTrail(self.state.follow(parents), rows)

    def keep(self, kept):
        size = self.state.size
        rows = [self.rows[i * size + k] for i in kept.tolist() for k in range(size)]
        return SharedTrail(self.state.keep(kept), rows)

    def join(self, other):
        raise AssertionError("one cohort")


def traced(model):
    """All trails of the model's search, as they grow."""
    trails: list[list[tuple[int, list[torch.Tensor]]]] = []
    begin, go_on = model.init_state, model.decode

    def init_state(memory, capacity=None):
        state = begin(memory, capacity)
        kind = SharedTrail if isinstance(state, SharedState) else Trail
        return kind(state, [[] for _ in range(len(memory.states))])

    def decode(tokens, trail, need_weights=False):
        output = go_on(tokens, trail.state, need_weights=True)
        rows = [
            [*before, (int(tokens[i, 0]), [weights[i, :, 0] for weights in output.attentions or ()])]
            for i, before in enumerate(trail.rows)
        ]
        trails.extend(rows)
        return output._replace(state=type(trail)(output.state, rows))

    model.init_state, model.decode = init_state, decode
    return trails


@every_model
def test_a_path_of_the_beam_has_the_weights_that_were_seen_while_it_was_searched(name):
    model = make(name)
    sources = sentences([6, 4, 3])
    batch = collate([(source, []) for source in sources], range(3))
    limits = torch.tensor([9, 9, 9])
    trails = traced(model)
    found = generate(model, batch.source, batch.source_mask, Beam(4, 0.8, n_best=3), limits)
    del model.init_state, model.decode
    for row, (source, hypotheses) in enumerate(zip(sources, found, strict=True)):
        for hypothesis in hypotheses:
            one = collate([(source, hypothesis.tokens)], [0])
            captured = [w for site, w in all_weights(model, one).items() if site.stack == "cross"]
            written = one.inputs[0].tolist()
            searched = [trail for trail in trails if [token for token, _ in trail] == written]
            assert searched, f"sentence {row}: the search has not walked this path"
            looks = [
                [torch.stack(layer, 1) for layer in zip(*(w for _, w in trail), strict=True)] for trail in searched
            ]
            wanted = [weights[0].expand(-1, len(written), -1) for weights in captured]
            # Another sentence may have been given the same words.
            assert any(
                len(steps) == len(wanted)
                and all(
                    torch.allclose(step[..., : weights.size(-1)], weights, rtol=0, atol=1e-6)
                    for step, weights in zip(steps, wanted, strict=True)
                )
                for steps in looks
            )


def test_the_encoder_alone_is_captured_without_a_target():
    model, batch = make("transformer rotary, rms, swiglu"), pairs()
    found = encoder_weights(model, batch.source, batch.source_mask)
    together = all_weights(model, batch)
    assert set(found) == {Site("encoder", 0), Site("encoder", 1)}
    for site, weights in found.items():
        torch.testing.assert_close(weights, together[site])
