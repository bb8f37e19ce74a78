"""What the experiments claim holds in the numbers they measure."""

import json
import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from saccade.config import Config
from saccade.errors import SaccadeError
from saccade.explain import TOPICS, explain, masking, positions, scaling
from saccade.explain.bottleneck import matching_width
from saccade.explain.leaking import FLOOR
from saccade.explain.show import as_json

# Trainings as short as still show their point.
SHORT = {"masking": 160, "heads": 160, "bottleneck": 300}


@cache
def numbers_of(topic: str) -> Mapping[str, Any]:
    return explain(topic, steps=SHORT.get(topic)).numbers


def test_the_variance_of_a_dot_product_is_its_width():
    numbers = numbers_of("scaling")
    assert numbers["widths"][0] == 4
    assert numbers["widths"][-1] == 4096
    for width, plain, scaled in zip(
        numbers["widths"], numbers["unscaled"]["variance"], numbers["scaled"]["variance"], strict=True
    ):
        assert plain == pytest.approx(width, rel=0.06)
        assert scaled == pytest.approx(1, rel=0.06)


def test_softmax_saturates_with_the_width_unless_scores_are_scaled():
    numbers = numbers_of("scaling")
    plain, scaled = numbers["unscaled"], numbers["scaled"]
    assert plain["entropy"] == sorted(plain["entropy"], reverse=True)
    assert plain["largest"] == sorted(plain["largest"])
    assert plain["largest"][-1] > 0.95
    assert plain["gradient"][-1] < 1e-5 * plain["gradient"][0]
    for what in ("entropy", "largest", "gradient"):
        assert max(scaled[what]) < 1.1 * min(scaled[what])


def test_the_gradient_through_softmax_is_that_of_its_jacobian():
    """∂α_i/∂e_j = α_i (δ_ij - α_j), written out."""
    scores = torch.randn(5, 7, generator=torch.Generator().manual_seed(3), dtype=torch.float64) * 2
    coming = torch.randn(5, 7, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    norms = []
    for e, g in zip(scores, coming, strict=True):
        weights = [math.exp(x) / sum(math.exp(y) for y in e.tolist()) for x in e.tolist()]
        unit = [x / math.sqrt(sum(y * y for y in g.tolist())) for x in g.tolist()]
        left = [sum(unit[i] * weights[i] * ((i == j) - weights[j]) for i in range(7)) for j in range(7)]
        norms.append(math.sqrt(sum(x * x for x in left)))
    measured = scaling._saturation(scores, torch.Generator().manual_seed(4))
    assert measured["gradient"] == pytest.approx(sorted(norms)[2], rel=1e-9)
    assert measured["variance"] == pytest.approx(scores.var().item())


def test_order_is_nothing_without_positions_and_something_with_each_scheme():
    changes = numbers_of("positions")["order_change"]
    assert list(changes) == ["none", "sinusoidal", "learned", "shaw", "t5", "alibi", "rotary"]
    assert changes.pop("none") < 1e-12
    assert min(changes.values()) > 0.05


def test_a_later_sinusoid_is_a_linear_function_of_an_earlier_one_and_a_learned_position_is_not():
    for residual in numbers_of("positions")["linear_residual"].values():
        assert residual["rotation"] < 1e-12
        assert residual["fitted"] < 1e-9
        assert residual["learned"] > 0.1


def test_the_rotations_are_the_angle_sums_of_the_paper():
    steps, M = 7, positions.rotations(7)
    for i in range(positions.WIDTH // 2):
        angle = steps * 10_000 ** (-2 * i / positions.WIDTH)
        block = M[2 * i : 2 * i + 2, 2 * i : 2 * i + 2]
        expected = [math.cos(angle), -math.sin(angle), math.sin(angle), math.cos(angle)]
        assert block.flatten().tolist() == pytest.approx(expected, abs=1e-6)
    assert int((M != 0).sum()) == 2 * positions.WIDTH


def test_dot_products_of_sinusoids_depend_on_distance_alone():
    numbers = numbers_of("positions")
    assert numbers["dot_product_difference"] < 1e-12
    first, _, learned = numbers["dot_products"].values()
    assert first == pytest.approx(first[::-1])
    assert learned != pytest.approx(learned[::-1], abs=0.1)


def test_the_masks_are_what_their_names_say():
    for i in range(8):
        for j in range(8):
            assert masking.MASKS["causal"][i, j] == (j <= i)
            assert masking.MASKS["prefix"][i, j] == (j <= i or j < masking.PREFIX)
            assert masking.MASKS["window"][i, j] == (abs(i - j) <= masking.RADIUS)
            assert masking.MASKS["order"][i, j] == (masking.ORDER.index(j) <= masking.ORDER.index(i))


def test_nothing_leaks_through_a_mask_and_everything_it_allows_arrives():
    for each in numbers_of("masking")["masks"].values():
        assert each["leak"] == 0.0
        gradient, reach = torch.tensor(each["gradient"]), torch.tensor(each["reach"])
        assert torch.equal(gradient > 0, reach)


def test_only_a_window_reaches_beyond_its_mask_in_two_layers():
    wider = [name for name, each in numbers_of("masking")["masks"].items() if each["reach"] != each["mask"]]
    assert wider == ["window"]


def test_a_leak_would_be_measured():
    wide = masking.dependence(torch.ones(8, 8, dtype=torch.bool))
    assert wide.leak == 0.0
    assert wide._replace(reach=masking.MASKS["causal"]).leak > 0.01


def test_a_missing_mask_gives_a_loss_too_good_to_be_true_and_a_model_that_cannot_write():
    numbers = numbers_of("masking")
    honest, leaking = numbers["with_mask"], numbers["without_mask"]
    assert FLOOR < honest["loss"] < FLOOR + 0.15
    assert leaking["loss"] < 0.5 * FLOOR
    assert leaking["teacher_forced"] > 0.9
    assert leaking["written"] < 0.35
    assert honest["written"] > 0.9


def test_one_head_names_one_neighbour_and_eight_heads_of_the_same_size_name_both():
    one, eight = numbers_of("heads")["one"], numbers_of("heads")["eight"]
    assert one["parameters"] == eight["parameters"]
    assert one["accuracy"][-1] < 0.25
    assert max(one["each"]) > 0.8
    assert min(one["each"]) < 0.3
    assert eight["accuracy"][-1] > 0.9


def test_some_heads_look_back_and_others_ahead():
    numbers = numbers_of("heads")
    strongest = {numbers["offsets"][row.index(max(row))] for row in numbers["eight"]["looks"]}
    assert {-1, 2} <= strongest


def test_accuracy_falls_with_length_for_one_vector_and_not_for_attention():
    numbers = numbers_of("bottleneck")
    vector, attention = numbers["vector"], numbers["attention"]
    assert abs(vector["parameters"] / attention["parameters"] - 1) < 0.1
    assert vector["accuracy"][0] > 0.9
    assert vector["accuracy"][-1] < 0.3
    for length, lost, kept in zip(numbers["lengths"], vector["accuracy"], attention["accuracy"], strict=True):
        assert length < 12 or kept > lost + 0.3
        assert length > 12 or kept > 0.9


def test_the_width_of_the_vector_is_the_one_that_matches():
    assert matching_width(112_576) == 86


@pytest.mark.parametrize("topic", TOPICS)
def test_every_explanation_is_complete(topic):
    explanation = explain(topic, steps=2 if topic in SHORT else None)
    assert 3 <= len(explanation.paragraphs) <= 5
    assert all(len(row) == len(table.columns) for table in explanation.tables for row in table.rows)
    assert explanation.plot.panels
    again = json.loads(as_json(explanation, topic, 1, None))
    assert again["numbers"] == json.loads(json.dumps(dict(explanation.numbers)))


def test_a_seed_gives_its_numbers_again_and_another_gives_others():
    first, again, other = (explain("heads", seed=seed, steps=3).numbers for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_an_experiment_leaves_torch_as_it_was():
    torch.manual_seed(5)
    expected = torch.randn(3)
    threads = torch.get_num_threads()
    torch.manual_seed(5)
    explain("positions")
    assert torch.equal(torch.randn(3), expected)
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize(
    ("topic", "steps", "said"),
    [
        ("heds", None, r"topic 'heds' is not known; did you mean heads\?"),
        ("zzz", None, r"known are scaling, positions, masking, heads, bottleneck"),
        ("scaling", 5, r"steps=5: nothing is trained for scaling; .*masking, heads, bottleneck"),
        ("heads", 0, r"steps=0: train for 1 or more"),
    ],
)
def test_what_cannot_be_explained_is_refused_with_the_remedy(topic, steps, said):
    with pytest.raises(SaccadeError, match=said):
        explain(topic, steps=steps)


def test_what_a_command_asks_of_no_topic_is_refused_and_a_seed_beyond_64_bits(command):
    for asked in (["--out", "plot.png"], ["--json", "-"], ["--steps", "3"]):
        done = command("explain", *asked)
        assert done.status == 2
        assert "are for a topic; name one: scaling" in done.err
    with pytest.raises(SaccadeError, match="is more than 64 bits hold"):
        explain("scaling", seed=2**63)
    with pytest.raises(SaccadeError, match=r"training\.seed=9223372036854775808"):
        Config.load(None, [f"training.seed={2**63}"])


@pytest.mark.parametrize("topic", TOPICS)
def test_every_topic_has_its_figure_on_the_page_and_the_command_that_made_it(topic):
    docs = Path(__file__).parent.parent / "docs"
    page = (docs / "explain.md").read_text(encoding="utf-8")
    assert f"saccade explain {topic} --out docs/figures/{topic}.svg" in page
    assert f"](figures/{topic}.svg)" in page
    title = explain(topic, steps=1 if topic in SHORT else None).plot.title
    assert title in (docs / "figures" / f"{topic}.svg").read_text(encoding="utf-8")
