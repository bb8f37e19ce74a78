"""The recurrent continuous translation model, RCTM I   (Kalchbrenner and Blunsom 2013, 2 and 3).

Convolutions make one vector of the source; a recurrent language model is told it at every step:

    e = CSM(source),  s = S e
    h_1 = σ(I v(f_1) + s),  h_{t+1} = σ(R h_t + I v(f_{t+1}) + s),  o_{t+1} = O h_t

σ is tanh here, in the convolutions and in the decoder: for a logistic function, which is tanh stretched and moved,
other weights give the same. The decoder's recurrence has a bias, as all recurrences here.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from saccade.attention.dropout import Dropout
from saccade.models.protocol import DecoderOutput, Memory
from saccade.models.rnn import RecurrentDecoder, RecurrentState


class SentenceConvolutions(nn.Module):
    """The convolutional sentence model (CSM): a pyramid of convolutions from the words up to one vector.

    E_1 = the words' embeddings, a column each;   E_i = σ(K^i ∗ E_{i-1}),  i = 2, 3, …

    Kernel K^i spans i columns and has a number of its own for each of them and for each dimension; dimensions do not
    mix and nothing is pooled, so order counts. Each layer leaves i - 1 columns fewer. Once c ≤ i columns are left, the
    top kernel L^c folds them into one (six words: K² leaves 5, K³ leaves 3, L³ leaves 1):

    CSM = σ(L^c ∗ E_{i-1})   (a single word is its own embedding)

    Kernels grow up to `largest`, r: enough for r (r + 1) / 2 words (the paper's r is ⌈√(2N)⌉ for sentences of at most N
    words). A longer sentence goes through K^r until at most r columns are left.
    """

    def __init__(self, embedding: nn.Embedding, largest: int, dropout: float) -> None:
        super().__init__()
        self.embedding = embedding
        self.dropout = Dropout(dropout)
        self.sizes = list(range(2, largest + 1))
        self.width = embedding.embedding_dim
        # One parameter for all kernels of a kind, a row for each column that one spans.
        self.K = nn.Parameter(torch.empty(sum(self.sizes), self.width))
        self.L = nn.Parameter(torch.empty(sum(self.sizes), self.width))
        for kernel in (*self.kernels(self.K), *self.kernels(self.L)):
            nn.init.normal_(kernel.data, std=kernel.size(0) ** -0.5)  # a sum of n columns is as loud as one

    def kernels(self, kind: Tensor) -> tuple[Tensor, ...]:
        """Those of K or L that span 2, 3, … r columns, (i, E) each."""
        return kind.split(self.sizes)

    def forward(self, source: Tensor, mask: Tensor) -> Memory:
        """The memory is the sentence's vector, (B, 1, E)."""
        x = self.dropout(self.embedding(source)).mT  # (B, E, S)
        columns = mask.sum(1)[:, None, None]  # that each row still has
        most, i, kernels = mask.size(1), 2, self.kernels(self.K)
        while most > i:
            # The columns that a row keeps come from columns of its own; what stands to their right is never asked for.
            convolved = torch.tanh(F.conv1d(x[..., :most], kernels[i - 2].mT.unsqueeze(1), groups=self.width))
            most -= i - 1
            room = max(most, min(x.size(2), i))  # rows that wait for their top kernel have at most i columns
            more = columns > i
            x = torch.where(more, F.pad(convolved, (0, room - most)), x[..., :room])
            columns = torch.where(more, columns - (i - 1), columns)
            i = min(i + 1, self.sizes[-1])
        return Memory(self._fold(x, columns).mT, mask[:, :1])

    def _fold(self, x: Tensor, columns: Tensor) -> Tensor:
        """Each row of x (B, E, ·) through the top kernel that spans its `columns` (B, 1, 1): (B, E, 1)."""
        top = pad_sequence(list(self.kernels(self.L)), batch_first=True)  # (r - 1, r, E): zeros beyond a kernel
        chosen = top[columns.flatten().clamp(min=2) - 2, : x.size(2)].mT
        return torch.where(columns > 1, torch.tanh((chosen * x).sum(-1, keepdim=True)), x[..., :1])


class RCTMDecoder(RecurrentDecoder):
    """h_t = σ(R h_{t-1} + I v(f_t) + s),  h_0 = 0,  s = S e   (Kalchbrenner and Blunsom 2013, RCTM I).

    I and S lie side by side in the recurrent layer's input matrix, [I S] [v(f_t); e], so all steps run in one fused
    call. `readout` only brings h_t to the width of the output embedding, O.
    """

    attends = False

    def init_state(self, memory: Memory, capacity: int | None = None) -> RecurrentState:
        return RecurrentState(self.stack.first.start(memory.states.size(0)).unsqueeze(1), memory)

    def forward(self, tokens: Tensor, state: RecurrentState, need_weights: bool = False) -> DecoderOutput:
        v = self.dropout(self.embedding(tokens))
        e = state.memory.states.expand(-1, tokens.size(1), -1)
        outputs, recurrent = self.stack(torch.cat([v, e], dim=-1), state.recurrent)
        return DecoderOutput(self.dropout(self.readout(outputs)), state.after(recurrent, tokens.size(1)), None)
