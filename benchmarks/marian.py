"""The peers of decoding, with the very weights of our Transformer: `transformers` MarianMT and CTranslate2.

A model with random weights and tied embeddings repeats one token for ever, and then any two systems agree. `varied`
makes one whose sentences are varied, whose choices are sure (so that rounding does not decide), and which ends every
sentence after a given number of tokens by itself, without a rule that one of the systems might not know.
"""

import copy
from collections.abc import Callable, Sequence
from itertools import islice, product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from saccade.config import Config
from saccade.data.batching import collate
from saccade.data.tokenizers import BOS, EOS, PAD, UNK, Tokenizer, Tokenizers
from saccade.models.build import build_model, with_shape
from saccade.models.packing import pack
from saccade.models.protocol import EncoderDecoder
from saccade.translator import Translator

Run = Callable[[list[str]], list[list[int]]]  # texts in; ids out, after they were made text too
QUIET, SURE, CLOCK = 0.2, 4.0, 0


def word_tokenizer(vocabulary: int) -> Tokenizer:
    """A tokenizer of `vocabulary` pieces: 4 special ones, the bytes, and words."""
    words = map("".join, product("abcdefghijklmnopqrstuvwxyz", repeat=4))
    return Tokenizer.train([" ".join(islice(words, vocabulary))] * 2, "words", vocabulary)


def varied(*, width: int, inner: int, heads: int, layers: int, vocabulary: int, tokens: int) -> Translator:
    """A translator that ends every sentence after `tokens` tokens."""
    settings = Config.load(
        None,
        [
            f"model.width={width}",
            f"model.feed_forward={inner}",
            f"model.heads={heads}",
            f"model.encoder_layers={layers}",
            f"model.decoder_layers={layers}",
            "model.norm=post",
            "model.tied=none",
            f"search.max_length_extra={tokens + 8}",
            "search.max_length_factor=0.001",
            "search.length_penalty=0",
            "search.guard=false",  # random weights go round in circles, which it alone would decode again
        ],
    )
    settings = settings.model_copy(update={"model": with_shape(settings.model, joint=True)})
    tokenizer = word_tokenizer(vocabulary)
    assert tokenizer.size == vocabulary, (tokenizer.size, vocabulary)
    torch.manual_seed(1)
    model = build_model(settings, vocabulary, vocabulary).eval()
    translator = Translator(settings, Tokenizers(tokenizer, tokenizer), model)
    never = [PAD, BOS, UNK, *(i for i in range(vocabulary) if {"\n", "\r"} & set(tokenizer.decode([i])))]
    _enliven(model, tokens, never)
    pack(model)  # as `saccade.load` does
    return translator


@torch.no_grad()
def _enliven(model: EncoderDecoder, tokens: int, never: Sequence[int]) -> None:
    """Sub-layers quiet enough for the last word to matter, surer outputs, and one dimension of the decoder that
    nothing writes to but the position: it is low until it is time to end."""
    for layer in model.decoder.layers:
        for linear in (layer.attention.output, layer.cross.output, layer.feed_forward.outer):
            linear.weight.mul_(QUIET)
            linear.weight[CLOCK] = 0.0
            linear.bias[CLOCK] = 0.0
    model.decoder.layers[-1].around_feed_forward.norm.weight.fill_(SURE)
    clock = model.decoder.embedding.positions.table[:, CLOCK]
    clock[:tokens] = -8.0
    clock[tokens:] = 8.0
    model.decoder.embedding.table.weight[:, CLOCK] = 0.0
    output = model.output_matrix
    output[:, CLOCK] = 0.0
    output[[*never, EOS]] = 0.0
    output[never, CLOCK] = 5.0
    output[EOS, CLOCK] = 10.0


def marian(model: EncoderDecoder, heads: int, dropout: float = 0.0, tied: bool = False, positions: int = 512) -> Any:
    """MarianMT with the weights of ours, a post-norm Transformer; `tied`: one table for both sides and the output."""
    from transformers import MarianConfig, MarianMTModel

    V, E = model.output_matrix.shape
    layers, inner = len(model.decoder.layers), model.decoder.layers[0].feed_forward.inner.out_features
    config = MarianConfig(
        vocab_size=V,
        decoder_vocab_size=V,
        d_model=E,
        encoder_layers=layers,
        decoder_layers=layers,
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=inner,
        decoder_ffn_dim=inner,
        activation_function="relu",
        max_position_embeddings=positions,
        scale_embedding=True,
        share_encoder_decoder_embeddings=tied,
        tie_word_embeddings=tied,
        dropout=dropout,
        attention_dropout=dropout,
        activation_dropout=dropout,
        pad_token_id=PAD,
        eos_token_id=EOS,
        bos_token_id=BOS,
        decoder_start_token_id=BOS,
        forced_eos_token_id=None,
        attn_implementation="sdpa",
    )
    peer = MarianMTModel(config).eval()
    with torch.no_grad():
        peer.lm_head.weight.copy_(model.output_matrix)
        for ours, theirs in ((model.encoder, peer.model.encoder), (model.decoder, peer.model.decoder)):
            theirs.embed_tokens.weight.copy_(ours.embedding.table.weight)
            theirs.embed_positions.weight.copy_(ours.embedding.positions.table[:positions])
            for layer, other in zip(ours.layers, theirs.layers, strict=True):
                _copy_layer(layer, other)
    return peer


def _copy_layer(ours: Any, theirs: Any) -> None:
    attention = ours.attention
    _copy_heads(attention.query_key_value.weight, attention.query_key_value.bias, attention.output, theirs.self_attn)
    theirs.self_attn_layer_norm.load_state_dict(ours.around_attention.norm.state_dict())
    if hasattr(ours, "cross"):
        weight, bias = (
            torch.cat(pair)
            for pair in zip(ours.cross.query.parameters(), ours.cross.key_value.parameters(), strict=True)
        )
        _copy_heads(weight, bias, ours.cross.output, theirs.encoder_attn)
        theirs.encoder_attn_layer_norm.load_state_dict(ours.around_cross.norm.state_dict())
    theirs.fc1.load_state_dict(ours.feed_forward.inner.state_dict())
    theirs.fc2.load_state_dict(ours.feed_forward.outer.state_dict())
    theirs.final_layer_norm.load_state_dict(ours.around_feed_forward.norm.state_dict())


def _copy_heads(weight: Tensor, bias: Tensor, output: nn.Linear, theirs: Any) -> None:
    for part, w, b in zip((theirs.q_proj, theirs.k_proj, theirs.v_proj), weight.chunk(3), bias.chunk(3), strict=True):
        part.weight.copy_(w)
        part.bias.copy_(b)
    theirs.out_proj.load_state_dict(output.state_dict())


def saccade_run(translator: Translator, beam: int) -> Run:
    def run(texts: list[str]) -> list[list[int]]:
        return [translation._ids for translation in translator.translate(texts, beam=beam)]

    return run


def marian_run(peer: Any, tokenizer: Tokenizer, beam: int, room: int) -> Run:
    device = peer.device

    @torch.inference_mode()
    def run(texts: list[str]) -> list[list[int]]:
        batch = collate([(ids, []) for ids in tokenizer.encode_batch(texts)], range(len(texts))).to(device)
        found = peer.generate(
            input_ids=batch.source,
            attention_mask=batch.source_mask.long(),
            num_beams=beam,
            do_sample=False,
            max_new_tokens=room,
            **({"length_penalty": 0.0, "early_stopping": False} if beam > 1 else {}),
        ).tolist()
        return _said([row[1:] for row in found], tokenizer)

    return run


def to_ctranslate2(peer: Any, tokenizer: Tokenizer, folder: Path, quantization: str | None) -> None:
    """Write the peer's weights as a CTranslate2 model."""
    from ctranslate2.converters.transformers import BartLoader

    model = copy.deepcopy(peer)  # quantising overwrites the weights where they are
    model.config.normalize_before = model.config.normalize_embedding = False
    loader = BartLoader()  # Marian's own would drop the last piece of the vocabulary
    spec = loader.get_model_spec(model)
    loader.set_vocabulary(spec, _names(tokenizer))
    spec.config.bos_token, spec.config.eos_token, spec.config.unk_token = "<s>", "</s>", "<unk>"
    spec.config.decoder_start_token = "<s>"
    spec.config.add_source_bos = spec.config.add_source_eos = False
    spec.validate()
    spec.optimize(quantization=quantization)
    folder.mkdir(parents=True)
    spec.save(str(folder))


def _names(tokenizer: Tokenizer) -> list[str]:
    return ["<pad>", "<s>", "</s>", "<unk>", *(f"p{i}" for i in range(4, tokenizer.size))]


def ctranslate2_run(engine: Any, tokenizer: Tokenizer, beam: int, room: int) -> Run:
    names = _names(tokenizer)
    number = {name: i for i, name in enumerate(names)}

    def run(texts: list[str]) -> list[list[int]]:
        found = engine.translate_batch(
            [[*(names[i] for i in ids), "</s>"] for ids in tokenizer.encode_batch(texts)],
            beam_size=beam,
            max_decoding_length=room,
            length_penalty=0,
            max_batch_size=0,
        )
        return _said([[number[name] for name in result.hypotheses[0]] for result in found], tokenizer)

    return run


def _said(rows: list[list[int]], tokenizer: Tokenizer) -> list[list[int]]:
    """Ids up to the end, after they were made text, which is part of the work."""
    rows = [row[: row.index(EOS)] if EOS in row else row for row in rows]
    for row in rows:
        tokenizer.decode(row)
    return rows
