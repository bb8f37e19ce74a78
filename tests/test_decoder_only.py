"""The decoder-only Transformer against one plain pass over one unpadded sentence, in float64."""

import itertools
import math
import re

import pytest
import torch
import torch.nn.functional as F
from models_under_test import DECODER_ONLY, sentences, settings_of

from saccade.api import load, settings_from, train
from saccade.attention.masks import causal, prefix
from saccade.attention.positions import Learned, Sinusoidal
from saccade.config import Config
from saccade.data.batching import collate
from saccade.data.store import Store, StoreWriter
from saccade.errors import SaccadeError
from saccade.generation.loop import generate
from saccade.generation.search import Beam
from saccade.models.build import build_model, measures, with_shape
from saccade.training.checks import check_lengths

SCHEMES = ["sinusoidal", "learned", "shaw", "t5", "alibi", "rotary", "none"]
VARIANTS = {
    **{f"{wiring} {scheme}": [f"model.wiring={wiring}", f"model.positions={scheme}"]
       for wiring, scheme in itertools.product(("causal", "prefix"), SCHEMES)},
    "causal, post-norm, separate tables": ["model.wiring=causal", "model.norm=post", "model.tied=decoder"],
    "prefix, rms, swiglu, multi-query": [
        "model.wiring=prefix",
        "model.normalisation=rms",
        "model.activation=swiglu",
        "model.key_heads=1",
        "model.positions=shaw",
    ],
    "prefix, deepnorm, concatenated": ["model.wiring=prefix", "model.norm=deep", "model.merge_positions=concatenate"],
}  # fmt: skip
every_variant = pytest.mark.parametrize("variant", VARIANTS)


def settings(*more: str) -> Config:
    config = Config.load(None, [*DECODER_ONLY, "model.max_positions=40", *more])
    return config.model_copy(update={"model": with_shape(config.model, joint=True)})


def lively(*more: str):
    torch.manual_seed(0)
    model = build_model(settings(*more), 20, 20).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5).add_(torch.randn_like(parameter) * 0.3)
    return model


def batch_of_three():
    pairs = list(zip(sentences([5, 9, 2]), sentences([7, 3, 6], seed=2), strict=True))
    return pairs, collate(pairs, range(3), (12, 9))


# --- the reference: source and target side by side, one mask, plain torch ---------------------------------------------


def placed(embedding, tokens, places):
    """√E · W[token], with the position of each added or joined."""
    words = embedding.table.weight[tokens] * embedding.table.embedding_dim**0.5
    width = embedding.table.embedding_dim
    if isinstance(embedding.positions, Learned):
        positions = embedding.positions.table[places]
    elif isinstance(embedding.positions, Sinusoidal):
        waves = [[p / 10000 ** (d // 2 * 2 / width) for d in range(width)] for p in places]
        positions = [[math.sin(a) if d % 2 == 0 else math.cos(a) for d, a in enumerate(row)] for row in waves]
        positions = torch.tensor(positions, dtype=torch.float64)
    else:
        positions = torch.zeros_like(words)
    if embedding.merge is None:
        return words + positions
    return torch.cat([words, positions], -1) @ embedding.merge.weight.T


def turned(x, relative):
    """Rotary: each pair of numbers as a complex one, times e^{ip·frequency}."""
    if type(relative).__name__ != "Rotary":
        return x
    H, L, D = x.shape
    frequency = 10_000.0 ** (-torch.arange(0, D, 2, dtype=torch.float64) / D)
    angle = torch.arange(L, dtype=torch.float64)[:, None] * frequency
    pairs = torch.view_as_complex(x.reshape(H, L, D // 2, 2).contiguous()) * torch.polar(torch.ones_like(angle), angle)
    return torch.view_as_real(pairs).reshape(H, L, D)


def heads_of(attention, x, mask):
    """softmax of scores with what each scheme adds to them, then the values: context (L, E), weights (H, L, L)."""
    heads, key_heads, D = attention.shape.heads, attention.shape.key_heads, attention.shape.head_width
    joint = x @ attention.query_key_value.weight.T + attention.query_key_value.bias
    q, k, v = joint.split([heads * D, key_heads * D, key_heads * D], -1)
    q, k, v = (part.view(len(x), -1, D).transpose(0, 1) for part in (q, k, v))
    k, v = (part[[h * key_heads // heads for h in range(heads)]] for part in (k, v))
    relative, kind = attention.relative, type(attention.relative).__name__
    e = turned(q, relative) @ turned(k, relative).mT / D**0.5
    away = torch.arange(len(x))[None] - torch.arange(len(x))[:, None]
    clipped = away.clamp(-16, 16) + 16
    if kind == "ALiBi":
        e = e - torch.stack([2 ** (-8 * (h + 1) / heads) * away.abs() for h in range(heads)])
    if kind == "T5Buckets":
        e = e + torch.stack([relative.table[h][relative.bucket(away)] for h in range(heads)])
    if kind == "Shaw":
        e = e + torch.einsum("hid,ijd->hij", q, relative.keys[clipped]) / D**0.5
    weights = e.masked_fill(~mask, -float("inf")).softmax(-1)
    context = weights @ v
    if kind == "Shaw":
        context = context + torch.einsum("hij,ijd->hid", weights, relative.mixed[clipped])
    context = context.transpose(0, 1).reshape(len(x), -1)
    return context @ attention.output.weight.T + attention.output.bias, weights


def forward_of(feed_forward, x):
    inner = x @ feed_forward.inner.weight.T + feed_forward.inner.bias
    if feed_forward.gated:
        gate, inner = inner.chunk(2, -1)
        inner = F.silu(gate) * inner
    else:
        inner = inner.relu()
    return inner @ feed_forward.outer.weight.T + feed_forward.outer.bias


def around(residual, x, f):
    return x + f(residual.norm(x)) if residual.pre else residual.norm(residual.scale * x + f(x))


def reference(model, source, inputs, wiring):
    """One unpadded sentence: hidden states of the target (T, E), weights over the source, (H, T, S) a layer."""
    S, L = len(source), len(source) + len(inputs)
    x = torch.cat(
        [
            placed(model.encoder.embedding, source, list(range(S))),
            placed(model.decoder.embedding, inputs, list(range(S, L))),
        ]
    )
    mask = prefix(torch.tensor([S]), L, L)[0, 0] if wiring == "prefix" else causal(L, L)
    looked = []
    for layer in model.decoder.layers:

        def attention(y, layer=layer):
            context, weights = heads_of(layer.attention, y, mask)
            looked.append(weights[:, S:, :S])
            return context

        x = around(layer.around_attention, x, attention)
        x = around(layer.around_feed_forward, x, lambda y, layer=layer: forward_of(layer.feed_forward, y))
    return model.decoder.norm(x[S:]), looked


@every_variant
def test_each_row_of_a_padded_batch_equals_one_plain_pass_over_its_sentence(variant):
    model = lively(*VARIANTS[variant])
    pairs, batch = batch_of_three()
    output = model(batch.source, batch.source_mask, batch.inputs, need_weights=True)
    # Waves and turns are made in single precision, whatever the model's own.
    fine = {} if re.search("learned|shaw|t5|alibi|none", variant) else {"rtol": 1e-5, "atol": 1e-5}
    for b, (source, target) in enumerate(pairs):
        S, T = len(source) + 1, len(target) + 1
        hidden, looked = reference(model, batch.source[b, :S], batch.inputs[b, :T], variant.split(",")[0].split()[0])
        torch.testing.assert_close(output.hidden[b, :T], hidden, **fine)
        assert len(output.attentions) == len(looked) == 2
        for ours, theirs in zip(output.attentions, looked, strict=True):
            torch.testing.assert_close(ours[b, :, :T, :S], theirs, **fine)
            assert not ours[b, :, :, S:].any()


@pytest.mark.parametrize("variant", ["causal learned", "prefix learned", "prefix none", "causal t5"])
def test_gradients_equal_those_of_the_plain_pass(variant):
    model, wiring = lively(*VARIANTS[variant]), variant.split()[0]
    pairs, batch = batch_of_three()
    probe = torch.randn(9, 16, dtype=torch.float64)
    hidden = model(batch.source, batch.source_mask, batch.inputs).hidden
    sum((hidden[b, : len(t) + 1] * probe[: len(t) + 1]).sum() for b, (_, t) in enumerate(pairs)).backward()
    ours = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    model.zero_grad()
    for b, (source, target) in enumerate(pairs):
        T = len(target) + 1
        hidden, _ = reference(model, batch.source[b, : len(source) + 1], batch.inputs[b, :T], wiring)
        (hidden * probe[:T]).sum().backward()
    assert len(ours) > 10
    for name, parameter in model.named_parameters():
        if name in ours:
            torch.testing.assert_close(ours[name], parameter.grad, msg=name)


@every_variant
def test_stepwise_decoding_equals_teacher_forcing_with_every_scheme(variant):
    model = lively(*VARIANTS[variant])
    _, batch = batch_of_three()
    whole = model(batch.source, batch.source_mask, batch.inputs, need_weights=True)
    state = model.init_state(model.encode(batch.source, batch.source_mask), capacity=9)
    for t in range(9):
        step = model.decode(batch.inputs[:, t : t + 1], state, need_weights=True)
        state = step.state
        torch.testing.assert_close(step.hidden[:, 0], whole.hidden[:, t], rtol=0, atol=1e-10)
        torch.testing.assert_close(step.attentions[1][:, :, 0], whole.attentions[1][:, :, t], rtol=0, atol=1e-10)


@pytest.mark.parametrize(("wiring", "changed"), [("causal", False), ("prefix", True)])
def test_the_first_word_of_a_source_knows_of_the_last_if_the_source_is_a_prefix(wiring, changed):
    model = lively(f"model.wiring={wiring}", "model.positions=rotary")
    mask = torch.ones(1, 5, dtype=torch.bool)
    keys = [
        model.init_state(model.encode(torch.tensor([[5, 6, 7, 8, last]]), mask), capacity=1).caches[1].keys[:, :, :4]
        for last in (9, 10)
    ]
    assert (not torch.equal(*keys)) == changed


@pytest.mark.parametrize("variant", ["causal alibi", "prefix learned"])
def test_coverage_is_counted_in_the_sources_own_columns(variant):
    """A search that asks where the model looked gives each sentence the answer that it has alone."""
    model, sources = lively(*VARIANTS[variant]), sentences([4, 9, 2])
    limits, search = torch.tensor([8, 12, 6]), Beam(3, 0.8, 0.5, 2)
    batch = collate([(source, []) for source in sources], range(3), (12, 1))
    together = generate(model, batch.source, batch.source_mask, search, limits)
    for b, source in enumerate(sources):
        one = collate([(source, [])], [0])
        (alone,) = generate(model, one.source, one.source_mask, search, limits[b : b + 1])
        assert [h.tokens for h in together[b]] == [h.tokens for h in alone]
        assert [h.score for h in together[b]] == pytest.approx([h.score for h in alone], abs=1e-9)


def test_a_longer_source_moves_the_target_in_absolute_positions():
    """Row 1's target starts behind its own five words, not behind the padded twelve."""
    model = lively("model.wiring=causal", "model.positions=learned")
    _, batch = batch_of_three()
    hidden = model(batch.source, batch.source_mask, batch.inputs).hidden
    with torch.no_grad():
        model.decoder.embedding.positions.table[20:] += 100.0  # 5 + 1 words, then BOS … of row 1 stand at 6 to 14
    moved = model(batch.source, batch.source_mask, batch.inputs).hidden
    torch.testing.assert_close(moved[0], hidden[0])


def test_tables_are_shared_as_tied_says_and_positions_always():
    tied = build_model(settings("model.wiring=prefix", "model.tied=all", "model.positions=learned"), 20, 20)
    assert tied.encoder.embedding.table.weight is tied.decoder.embedding.table.weight is tied.decoder.output.weight
    apart = build_model(settings("model.wiring=prefix", "model.tied=none", "model.positions=learned"), 20, 20)
    assert apart.encoder.embedding.table.weight is not apart.decoder.embedding.table.weight
    assert apart.encoder.embedding.positions.table is apart.decoder.embedding.positions.table


def test_deepnorm_of_a_single_stack_is_the_papers():
    model = build_model(settings("model.wiring=causal", "model.norm=deep", "model.decoder_layers=4"), 20, 20)
    assert model.decoder.layers[0].around_attention.scale == pytest.approx(8 ** (1 / 4))
    bound = (6 / 48) ** 0.5
    largest = model.decoder.layers[0].feed_forward.inner.weight.abs().max().item()
    assert largest == pytest.approx(32 ** (-1 / 4) * bound, rel=0.05)


def test_a_named_size_has_the_layers_of_both_stacks_and_an_encoder_is_refused():
    config = Config.load(None, ["model.size=tiny", "model.wiring=causal"])
    model = with_shape(config.model, joint=True)
    assert (model.encoder_layers, model.decoder_layers) == (None, 4)
    assert measures(model) == "decoder-only, causal, 128 wide, 4 layers, 4 heads"
    with pytest.raises(SaccadeError, match=r"model\.encoder_layers=3: model\.wiring=causal has one stack"):
        build_model(settings("model.wiring=causal", "model.encoder_layers=3"), 20, 20)


# --- what learned positions can hold ----------------------------------------------------------------------------------


def test_learned_positions_hold_source_and_target_together():
    model = lively("model.wiring=prefix", "model.positions=learned")
    for source, target in ((20, 18), (3, 35), (36, 2)):
        batch = collate([(sentences([source])[0], sentences([target], seed=2)[0])], [0])
        model(batch.source, batch.source_mask, batch.inputs)
    batch = collate([(sentences([20])[0], sentences([19], seed=2)[0])], [0])
    with pytest.raises(SaccadeError, match=r"41 pieces.*40 learned positions.*model\.max_positions"):
        model(batch.source, batch.source_mask, batch.inputs)
    state = model.init_state(model.encode(batch.source, batch.source_mask), capacity=30)
    for t in range(19):
        state = model.decode(batch.inputs[:, t : t + 1], state).state
    with pytest.raises(SaccadeError, match="41 pieces"):
        model.decode(batch.inputs[:, 19:20], state)


def test_padding_never_makes_a_pair_too_long():
    """A long source with a short target, and the other way round: each fits, the rectangle around both does not."""
    model = lively("model.wiring=causal", "model.positions=learned")
    pairs = list(zip(sentences([33, 2]), sentences([3, 33], seed=2), strict=True))
    batch = collate(pairs, [0, 1], (50, 45))
    together = model(batch.source, batch.source_mask, batch.inputs).hidden
    for b, pair in enumerate(pairs):
        alone = collate([pair], [0])
        T = alone.inputs.size(1)
        hidden = model(alone.source, alone.source_mask, alone.inputs).hidden
        torch.testing.assert_close(together[b, :T], hidden[0], rtol=0, atol=1e-10)


def test_pairs_beyond_the_positions_are_refused_before_the_first_step(tmp_path):
    with StoreWriter(tmp_path / "store", source_vocabulary=50, target_vocabulary=50) as writer:
        writer.append([5] * 12, [6] * 3)
        writer.append([5] * 8, [6] * 9)
    store = Store(tmp_path / "store")
    learned = ["model.wiring=prefix", "model.positions=learned"]
    check_lengths(settings_from([*learned, "model.max_positions=19"]), store)
    with pytest.raises(SaccadeError, match=r"model\.max_positions=18.*longest pair has 19 pieces.*both sides together"):
        check_lengths(settings_from([*learned, "model.max_positions=18"]), store)
    convs2s = ["model.family=conv", "model.wiring=convs2s"]
    check_lengths(settings_from([*convs2s, "model.max_positions=13"]), store)
    with pytest.raises(SaccadeError, match=r"model\.max_positions=12.*longest sentence has 13 pieces"):
        check_lengths(settings_from([*convs2s, "model.max_positions=12"]), store)


def test_convolutional_positions_say_where_they_end():
    config = settings_of("convs2s", "model.max_positions=40")
    model = build_model(config, 20, 20).eval()
    long = torch.randint(4, 20, (1, 41))
    with pytest.raises(SaccadeError, match=r"41 pieces.*40 learned positions.*model\.max_positions"):
        model.encode(long, torch.ones_like(long, dtype=torch.bool))
    with pytest.raises(SaccadeError, match=r"41 pieces.*40 learned positions"):
        model(long[:, :5], torch.ones(1, 5, dtype=torch.bool), long)


def test_it_trains_translates_aligns_and_says_what_is_too_long(tmp_path, tiny):
    arguments = [a for a in tiny if "encoder_layers" not in a]
    arguments += ["training.max_steps=30", "training.validate_every=30", "training.batch_tokens=512"]
    wiring = ["model.wiring=prefix", "model.positions=learned", "model.max_positions=100"]
    made = train(*arguments, *wiring, out=tmp_path / "run", quiet=True)
    translator = load(tmp_path / "run")
    found = translator.translate(["January 5, 2021", "seventeen"])
    assert [t.text for t in found] == [t.text for t in made.translate(["January 5, 2021", "seventeen"])]
    # By its pieces: what is so little trained may write a word in other pieces than the tokenizer would.
    (score,) = translator._score([(translator.tokenizers.source.encode("seventeen"), found[1]._ids)])
    assert found[1].score == pytest.approx(score, abs=1e-3)
    assert found[0].attentions[0].shape[2] == len(translator.tokenizers.source.encode("January 5, 2021")) + 1
    text = "seventeen " * 99
    pieces = translator.tokenizers.source.encode(text)
    assert len(pieces) > 98
    with pytest.raises(SaccadeError, match=rf"line 1: a sentence of {len(pieces):,} pieces, more than the 98 taken"):
        translator.translate(text, split="never")
    half = translator.tokenizers.source.decode(pieces[:90])
    limited = translator.translate(half, split="never")
    assert len(limited.tokens) <= 100 - len(translator.tokenizers.source.encode(half)) - 2
    with pytest.raises(SaccadeError, match=r"line 1: a pair of .* pieces with its ends, more than the 100"):
        translator.score([half], [half])
