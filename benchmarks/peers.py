"""What a user would write instead: the same network from torch's own parts, in a plain loop."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from saccade.attention.masks import causal
from saccade.attention.positions import sinusoid
from saccade.data.tokenizers import PAD
from saccade.models.protocol import EncoderDecoder


class TorchTransformer(nn.Module):
    """`torch.nn.Transformer` between embeddings: the network of our Transformer with tied embeddings."""

    positions: Tensor

    def __init__(
        self, vocabulary: int, width: int, heads: int, layers: int, inner: int, dropout: float, pre: bool = True
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.register_buffer("positions", sinusoid(torch.arange(256), width))
        self.transformer = nn.Transformer(
            width, heads, layers, layers, inner, dropout, batch_first=True, norm_first=pre
        )
        self.dropout = nn.Dropout(dropout)

    def embed(self, tokens: Tensor) -> Tensor:
        scaled = self.embedding(tokens) * self.embedding.embedding_dim**0.5
        return self.dropout(scaled + self.positions[: tokens.size(1)])

    def hidden(self, source: Tensor, inputs: Tensor) -> Tensor:
        padding = source == PAD
        T = inputs.size(1)
        return self.transformer(
            self.embed(source),
            self.embed(inputs),
            tgt_mask=~causal(T, T, inputs.device),
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )

    def forward(self, source: Tensor, inputs: Tensor) -> Tensor:
        return F.linear(self.hidden(source, inputs), self.embedding.weight)

    @torch.no_grad()
    def copy_from(self, model: EncoderDecoder) -> None:
        """Take over the weights of our Transformer."""
        self.embedding.weight.copy_(model.output_matrix)
        copy_transformer(model, self.transformer)


@torch.no_grad()
def copy_transformer(model: EncoderDecoder, reference: nn.Transformer) -> None:
    """Give torch's encoder and decoder the weights of ours."""
    for ours, theirs in zip(model.encoder.layers, reference.encoder.layers, strict=True):
        _copy_attention(theirs.self_attn, *ours.attention.query_key_value.parameters(), ours.attention.output)
        _copy_feed_forward(ours, theirs)
        theirs.norm1.load_state_dict(ours.around_attention.norm.state_dict())
        theirs.norm2.load_state_dict(ours.around_feed_forward.norm.state_dict())
    for ours, theirs in zip(model.decoder.layers, reference.decoder.layers, strict=True):
        _copy_attention(theirs.self_attn, *ours.attention.query_key_value.parameters(), ours.attention.output)
        parts = zip(ours.cross.query.parameters(), ours.cross.key_value.parameters(), strict=True)
        weight, bias = (torch.cat(pair) for pair in parts)
        _copy_attention(theirs.multihead_attn, weight, bias, ours.cross.output)
        _copy_feed_forward(ours, theirs)
        theirs.norm1.load_state_dict(ours.around_attention.norm.state_dict())
        theirs.norm2.load_state_dict(ours.around_cross.norm.state_dict())
        theirs.norm3.load_state_dict(ours.around_feed_forward.norm.state_dict())
    if isinstance(model.encoder.norm, nn.LayerNorm):
        reference.encoder.norm.load_state_dict(model.encoder.norm.state_dict())
        reference.decoder.norm.load_state_dict(model.decoder.norm.state_dict())
    else:
        reference.encoder.norm = reference.decoder.norm = None


def _copy_attention(theirs: nn.MultiheadAttention, weight: Tensor, bias: Tensor, output: nn.Linear) -> None:
    theirs.in_proj_weight.copy_(weight)
    theirs.in_proj_bias.copy_(bias)
    theirs.out_proj.load_state_dict(output.state_dict())


def _copy_feed_forward(ours: nn.Module, theirs: nn.Module) -> None:
    theirs.linear1.load_state_dict(ours.feed_forward.inner.state_dict())
    theirs.linear2.load_state_dict(ours.feed_forward.outer.state_dict())
