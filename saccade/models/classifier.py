"""A structured self-attentive sentence embedding, and the labels that are read off it (Lin et al. 2017).

A sentence becomes a matrix: r mixtures of a bidirectional LSTM's states, each mixed by an attention of its own. A label
is text like any other, so classifying is writing one word, and what is written ends with the end piece.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from saccade.attention.core import attend
from saccade.attention.dropout import Dropout
from saccade.attention.masks import over_keys
from saccade.attention.scores import Dot
from saccade.attention.watching import HOPS
from saccade.models.protocol import DecoderOutput, Memory
from saccade.models.recurrence import RecurrentEncoder, RecurrentLayer


class SentenceMatrix(nn.Module):
    """A = softmax(W_s2 tanh(W_s1 Hᵀ)),  M = A H   (Lin et al. 2017, eq. 6 and 7).

    H (n × 2u) are the states of the words, A (r × n) says where each of the r hops looks, M (r × 2u) is the memory: one
    state a hop. The rows of W_s2 are queries that are learned, tanh(W_s1 h) is the key of a word.

    While training, the memory carries `penalty` times P = ‖A Aᵀ - I‖²_F   (eq. 8), which is small where the hops look
    at different words and each at few.
    """

    looks = HOPS

    def __init__(self, encoder: RecurrentEncoder, attention_width: int, hops: int, penalty: float) -> None:
        super().__init__()
        self.encoder = encoder
        self.W_s1 = nn.Linear(encoder.width, attention_width, bias=False)
        self.W_s2 = nn.Parameter(torch.empty(hops, attention_width))
        self.heads = hops
        self.score = Dot()
        self.penalty = penalty
        self.width = hops * encoder.width  # of the whole matrix
        nn.init.xavier_uniform_(self.W_s1.weight)
        nn.init.xavier_uniform_(self.W_s2)

    def forward(self, source: Tensor, mask: Tensor) -> Memory:
        H, _ = self.encoder.read(source, mask)
        keys = torch.tanh(self.W_s1(H))
        found = attend(
            self.W_s2[None, None],
            keys.unsqueeze(1),
            H.unsqueeze(1),
            score=self.score,
            mask=over_keys(mask),
            need_weights=True,
        )
        assert found.weights is not None
        M, A = found.context.squeeze(1), found.weights.squeeze(1)  # (B, r, 2u), (B, r, S)
        penalty = self.penalty * redundancy(A) if self.training and self.penalty else None
        return Memory(M, mask.new_ones(M.shape[:2]), attention=A, penalty=penalty)


def redundancy(A: Tensor) -> Tensor:
    """P = ‖A Aᵀ - I‖²_F of each sentence's hops: (B, r, S) → (B,)   (Lin et al. 2017, eq. 8)."""
    A = A.to(torch.promote_types(A.dtype, torch.float32))
    identity = torch.eye(A.size(1), dtype=A.dtype, device=A.device)
    return (A @ A.mT - identity).square().sum((1, 2))


@dataclass(frozen=True)
class LabelState:
    """What the sentence says to the next piece of its label, and the pieces before it."""

    sentence: Tensor  # (B, E): W_M flatten(M) + b, the same for every piece
    written: Tensor  # (B, ·): the pieces so far, as a GRU remembers them
    attention: Tensor  # (B, r, S): A

    def select(self, indices: Tensor) -> "LabelState":
        return LabelState(*(part.index_select(0, indices) for part in (self.sentence, self.written, self.attention)))


class LabelDecoder(nn.Module):
    """t_i = ReLU(W_M flatten(M) + W_s s_i + b),  s_i = GRU(s_{i-1}, y_{i-1}),  p(y_i | …) = softmax(W_o t_i).

    Before the first piece s_1 is the same for every sentence, a bias: that is the paper's output, a fully connected
    layer with ReLU and a softmax layer on M (Lin et al. 2017, 4.1). The paper's labels are one symbol each; s lets a
    label have several pieces. It cannot look anywhere but at M, so every piece has the attention that made M.
    """

    attends = True

    def __init__(self, embedding: nn.Embedding, output: nn.Linear, sentence_width: int, dropout: float) -> None:
        super().__init__()
        self.embedding = embedding
        self.output = output
        self.written = RecurrentLayer("gru", embedding.embedding_dim, embedding.embedding_dim)
        self.W_M = nn.Linear(sentence_width, output.in_features)
        self.W_s = nn.Linear(self.written.width, output.in_features, bias=False)
        self.dropout = Dropout(dropout)

    def init_state(self, memory: Memory, capacity: int | None = None) -> LabelState:
        assert memory.attention is not None, "labels are read off a memory that was mixed by attention"
        sentence = self.W_M(memory.states.flatten(1))
        # In the weights' own precision: a state carried from piece to piece must not be rounded at every step.
        written = sentence.new_zeros(sentence.size(0), self.written.state_width, dtype=self.W_M.weight.dtype)
        return LabelState(sentence, written, memory.attention)

    def forward(self, tokens: Tensor, state: LabelState, need_weights: bool = False) -> DecoderOutput:
        s, written = self.written(self.embedding(tokens), state.written)
        hidden = self.dropout(torch.relu(state.sentence.unsqueeze(1) + self.W_s(s)))
        attentions = (state.attention.unsqueeze(2).expand(-1, -1, tokens.size(1), -1),) if need_weights else None
        return DecoderOutput(hidden, replace(state, written=written), attentions)

    def project(self, hidden: Tensor) -> Tensor:
        return self.output(hidden)
