"""RCTM I against the equations of Kalchbrenner and Blunsom 2013, written out column by column in float64."""

import pytest
import torch
from models_under_test import make, sentences, settings_of
from torch import nn

from saccade.data.batching import collate
from saccade.errors import SaccadeError
from saccade.models.build import build_model, measures
from saccade.models.rctm import SentenceConvolutions


def convolve(kernel, columns):
    """σ(K ∗ E): column j is Σ_k K_k ∘ E_{j+k}."""
    reach = range(len(columns) - len(kernel) + 1)
    return [torch.tanh(sum(kernel[k] * columns[j + k] for k in range(len(kernel)))) for j in reach]


def sentence_vector(csm: SentenceConvolutions, tokens) -> tuple[torch.Tensor, list[str]]:
    """The CSM of one sentence, and the kernels it went through."""
    K, L = ({len(kernel): kernel for kernel in csm.kernels(kind)} for kind in (csm.K, csm.L))
    columns, used, i = [csm.embedding.weight[token] for token in tokens], [], 2
    while len(columns) > 1:
        if len(columns) > i:
            used.append(f"K{i}")
            columns = convolve(K[i], columns)
            i = min(i + 1, max(K))
        else:
            used.append(f"L{len(columns)}")
            columns = convolve(L[len(columns)], columns)
    return columns[0], used


def pyramid(largest: int, vocabulary: int = 20) -> SentenceConvolutions:
    torch.manual_seed(0)
    return SentenceConvolutions(nn.Embedding(vocabulary, 7), largest, 0.0).double()


@pytest.mark.parametrize(
    ("words", "largest", "kernels"),
    [
        (1, 20, []),
        (2, 20, ["L2"]),
        (3, 20, ["K2", "L2"]),
        (6, 20, ["K2", "K3", "L3"]),
        (10, 4, ["K2", "K3", "K4", "L4"]),
        (14, 4, ["K2", "K3", "K4", "K4", "K4", "L2"]),
        (5, 2, ["K2", "K2", "K2", "L2"]),
    ],
)
def test_kernels_grow_until_the_top_one_fits_and_the_largest_repeats(words, largest, kernels):
    csm = pyramid(largest)
    source = torch.randint(4, 20, (1, words))
    vector, used = sentence_vector(csm, source[0])
    assert used == kernels
    torch.testing.assert_close(csm(source, source != 0).states[0, 0], vector)


@pytest.mark.parametrize("largest", [2, 3, 6, 20])
def test_sentences_of_all_lengths_in_one_batch_are_as_if_alone_gradients_too(largest):
    csm = pyramid(largest)
    lengths = [7, 1, 30, 2, 12, 3, 5, 21]
    mask = torch.arange(33) < torch.tensor(lengths).unsqueeze(1)
    source = torch.randint(4, 20, mask.shape)  # what stands in the padding is noise
    weigh = torch.randn(len(lengths), 7).double()
    states = csm(source, mask).states[:, 0]
    found = torch.autograd.grad((states * weigh).sum(), list(csm.parameters()))
    alone = torch.stack([sentence_vector(csm, row[:n])[0] for row, n in zip(source, lengths, strict=True)])
    torch.testing.assert_close(states, alone)
    for one, other in zip(found, torch.autograd.grad((alone * weigh).sum(), list(csm.parameters())), strict=True):
        torch.testing.assert_close(one, other)


def test_the_sentence_vector_knows_the_order_of_the_words():
    csm = pyramid(20)
    source = torch.tensor([[5, 6, 7, 8], [6, 5, 7, 8]])
    one, other = csm(source, source != 0).states[:, 0]
    assert (one - other).abs().min() > 1e-3


@torch.no_grad()
def test_the_decoder_is_told_the_sentence_vector_at_every_step():
    model = make("rnn rctm")
    batch = collate([(sentences([8])[0], sentences([5], seed=2)[0])], [0])
    output = model(batch.source, batch.source_mask, batch.inputs)
    decoder = model.decoder
    e, _ = sentence_vector(model.encoder, batch.source[0])
    W, R, b, d = decoder.stack.first.weights
    s = W[:, 12:] @ e  # W = [I S]
    h = torch.zeros(10, dtype=torch.float64)
    for t, token in enumerate(batch.inputs[0]):
        h = torch.tanh(R @ h + W[:, :12] @ decoder.embedding.weight[token] + s + b + d)
        torch.testing.assert_close(output.hidden[0, t], decoder.readout.weight @ h + decoder.readout.bias)
    torch.testing.assert_close(output.state.recurrent[0, 0], h)
    assert output.attentions is None


@pytest.mark.parametrize(
    ("setting", "remedy"),
    [
        ("model.cell=gru", r"model\.cell=gru.*set model\.cell=tanh"),
        ("model.layers=2", r"model\.layers=2.*set model\.layers=1"),
        ("model.bidirectional=true", r"set model\.bidirectional=false"),
        ("model.reverse_source=true", r"set model\.reverse_source=false"),
    ],
)
def test_what_the_paper_does_not_have_is_refused_with_the_remedy(setting, remedy):
    with pytest.raises(SaccadeError, match=remedy):
        build_model(settings_of("rnn rctm", setting), 20, 20)


def test_its_measures_say_that_it_does_not_attend():
    assert measures(settings_of("rnn rctm").model) == "rctm, tanh 10 wide, embeddings 12, no attention"
