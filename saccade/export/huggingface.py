"""To Hugging Face transformers: a folder that `from_pretrained` loads.

Three of its architectures are ours under another name: MarianMT is post-norm with sinusoids, Pegasus pre-norm with the
same sinusoids, Blenderbot pre-norm with learned positions. Their sinusoids have all sines first and then all cosines,
ours take turns, so the features are put into that order, in every matrix that reads or writes them. Heads that share
keys and values get their own copies.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file
from tokenizers import Tokenizer as Library
from tokenizers.processors import TemplateProcessing

from saccade.attention.positions import Learned
from saccade.config import SearchConfig
from saccade.data.tokenizers import BOS, EOS, PAD, SPECIALS, UNK, Tokenizer, Tokenizers
from saccade.engines.pytorch import by_tokens, longest_first
from saccade.errors import SaccadeError
from saccade.export.verify import Ids
from saccade.export.weights import Array, Attention, Linear, Norm, Stack, Transformer, as_full_heads, take_apart
from saccade.generation.orders import Job
from saccade.translator import Translator

POSITIONS = 1024  # the longest sequence, where positions are not learned
IMPOSSIBLE = np.float32(-1e9)  # the logit of a piece that only the other side has

# architecture and model_type, by whether it is pre-norm and whether positions are learned
CLASSES = {
    (False, False): ("MarianMTModel", "marian"),
    (True, False): ("PegasusForConditionalGeneration", "pegasus"),
    (True, True): ("BlenderbotForConditionalGeneration", "blenderbot"),
}


def write(translator: Translator, place: Path) -> None:
    """Write configuration, weights and tokenizer into the folder `place`."""
    learned = isinstance(translator.model.encoder.embedding.positions, Learned)  # type: ignore[union-attr]
    weights = take_apart(translator.model, POSITIONS)
    architecture, model_type = CLASSES[weights.pre, learned]
    tables = _same_size(weights) if model_type != "marian" else weights
    place.mkdir()
    config = _config(tables, architecture, model_type)
    _write_json(place / "config.json", config)
    _write_json(place / "generation_config.json", _generation(translator, tables))
    sinusoids_apart = np.r_[0 : weights.output.shape[1] : 2, 1 : weights.output.shape[1] : 2]
    tensors = _tensors(tables, None if learned else sinusoids_apart)
    tensors["final_logits_bias"] = _bias(len(translator.tokenizers.target.symbols), len(tables.output))
    if config["tie_word_embeddings"]:
        _tie(tensors, config.get("share_encoder_decoder_embeddings", True))
    elif model_type != "marian":  # it has one that nothing uses
        tensors["model.shared.weight"] = np.zeros_like(tensors["lm_head.weight"])
    save_file(
        {name: np.ascontiguousarray(x) for name, x in tensors.items()}, place / "model.safetensors", {"format": "pt"}
    )
    _write_tokenizers(translator.tokenizers, place)


def generate(place: Path, jobs: Sequence[Job], settings: SearchConfig) -> list[Ids]:
    """What `transformers` generates from ids, greedily or with a beam, without a length penalty."""
    model, sources = load(place), [job.source for job in jobs]
    found: list[Ids] = [[]] * len(sources)
    for batch in by_tokens(longest_first(sources), sources, settings.batch_tokens):
        rows = torch.full((len(batch), len(sources[batch[0]]) + 1), PAD)
        for row, i in enumerate(batch):
            rows[row, : len(sources[i]) + 1] = torch.tensor([*sources[i], EOS])
        with torch.inference_mode():
            out = model.generate(
                input_ids=rows,
                attention_mask=(rows != PAD).long(),
                num_beams=settings.beam,
                do_sample=False,
                length_penalty=0.0,
                early_stopping=settings.beam > 1,
                max_length=None,
                max_new_tokens=max(jobs[i].limit for i in batch),
            )
        for i, ids in zip(batch, out[:, 1:].tolist(), strict=True):
            found[i] = ids[: ids.index(EOS)] if EOS in ids else ids
    return found


def load(place: Path) -> Any:
    """The model in an export, as `transformers` loads it."""
    import transformers

    architecture = json.loads((place / "config.json").read_text(encoding="utf-8"))["architectures"][0]
    return getattr(transformers, architecture).from_pretrained(str(place)).eval()


def check_tokenizer(place: Path, translator: Translator, sources: Sequence[Ids]) -> None:
    """Refuse a tokenizer that cuts text otherwise than ours once `transformers` has loaded it."""
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(str(place))
    for ids in sources:
        text = translator.tokenizers.source.decode(ids)
        ours = [*translator.tokenizers.source.encode(text), EOS]
        if theirs(text)["input_ids"] != ours:
            raise SaccadeError(f"the exported tokenizer cuts {text!r} otherwise than ours; nothing was written")


def _config(weights: Transformer, architecture: str, model_type: str) -> dict[str, Any]:
    first = weights.encoder.layers[0].feed_forward
    joint = weights.encoder.table.shape == weights.output.shape and np.array_equal(
        weights.encoder.table, weights.output
    )
    config: dict[str, Any] = {
        "architectures": [architecture],
        "model_type": model_type,
        "is_encoder_decoder": True,
        "vocab_size": len(weights.encoder.table),
        "d_model": weights.output.shape[1],
        "max_position_embeddings": len(weights.encoder.positions),
        "activation_function": weights.activation,
        "scale_embedding": True,
        "dropout": 0.1,
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "decoder_start_token_id": BOS,
        "forced_eos_token_id": None,
        "encoder_no_repeat_ngram_size": 0,
        "tie_word_embeddings": joint and np.array_equal(weights.decoder.table, weights.output),
        "dtype": "float32",
    }
    if model_type == "marian":
        config["decoder_vocab_size"] = len(weights.output)
        config["share_encoder_decoder_embeddings"] = bool(joint)
        config["tie_word_embeddings"] = np.array_equal(weights.decoder.table, weights.output)
    for side, stack in (("encoder", weights.encoder), ("decoder", weights.decoder)):
        config |= {
            f"{side}_layers": len(stack.layers),
            f"{side}_ffn_dim": len(first.inner.weight),
            f"{side}_attention_heads": weights.heads,
        }
    return config


def _generation(translator: Translator, weights: Transformer) -> dict[str, Any]:
    search = translator.config.search
    unused = range(translator.tokenizers.target.size, len(weights.output))
    return {
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
        "decoder_start_token_id": BOS,
        "num_beams": search.beam,
        "length_penalty": search.length_penalty,
        "early_stopping": search.beam > 1,
        "max_length": min(POSITIONS // 2, len(weights.decoder.positions)),
        "suppress_tokens": [PAD, BOS, UNK, *translator.never_written, *unused],
    }


def _tensors(weights: Transformer, order: Any) -> dict[str, Array]:
    """All tensors under their names there, the features in `order`."""

    def read(linear: Linear) -> Linear:
        return linear if order is None else linear._replace(weight=linear.weight[:, order])

    def written(linear: Linear) -> Linear:
        return linear if order is None else Linear(linear.weight[order], linear.bias[order])

    def normed(norm: Norm) -> Linear:
        bias = np.zeros_like(norm.gain) if norm.bias is None else norm.bias
        return Linear(norm.gain, bias) if order is None else Linear(norm.gain[order], bias[order])

    def attention(attention: Attention, heads: int, key_heads: int) -> dict[str, Linear]:
        full = as_full_heads(attention, heads, key_heads)
        return {
            "q_proj": read(full.query),
            "k_proj": read(full.key),
            "v_proj": read(full.value),
            "out_proj": written(full.output),
        }

    def stack(name: str, stack: Stack) -> dict[str, Array]:
        parts: dict[str, Linear] = {}
        for n, layer in enumerate(stack.layers):
            named = {"self_attn": layer.itself} | ({"encoder_attn": layer.cross} if layer.cross is not None else {})
            for place, each in named.items():
                made = attention(each, weights.heads, weights.key_heads)
                parts |= {f"layers.{n}.{place}.{part}": linear for part, linear in made.items()}
                parts[f"layers.{n}.{place}_layer_norm"] = normed(each.norm)
            parts[f"layers.{n}.fc1"] = read(layer.feed_forward.inner)
            parts[f"layers.{n}.fc2"] = written(layer.feed_forward.outer)
            parts[f"layers.{n}.final_layer_norm"] = normed(layer.feed_forward.norm)
        if stack.norm is not None:
            parts["layer_norm"] = normed(stack.norm)
        tensors = {f"model.{name}.{part}.weight": linear.weight for part, linear in parts.items()}
        tensors |= {f"model.{name}.{part}.bias": linear.bias for part, linear in parts.items()}
        tensors[f"model.{name}.embed_tokens.weight"] = table(stack.table)
        tensors[f"model.{name}.embed_positions.weight"] = table(stack.positions)
        return tensors

    def table(x: Array) -> Array:
        return x if order is None else x[:, order]

    tensors = stack("encoder", weights.encoder) | stack("decoder", weights.decoder)
    return tensors | {"lm_head.weight": table(weights.output)}


def _tie(tensors: dict[str, Array], shared: bool) -> None:
    """Leave one copy of what is tied, under the name by which it is looked for."""
    output = tensors.pop("lm_head.weight")
    if shared:
        for side in ("encoder", "decoder"):
            del tensors[f"model.{side}.embed_tokens.weight"]
        tensors["model.shared.weight"] = output


def _same_size(weights: Transformer) -> Transformer:
    """Tables of one size, as some architectures want them: the smaller one gets rows that are never used."""
    size = max(len(weights.encoder.table), len(weights.output))

    def grown(table: Array) -> Array:
        return np.concatenate([table, np.zeros((size - len(table), table.shape[1]), np.float32)])

    return weights._replace(
        encoder=weights.encoder._replace(table=grown(weights.encoder.table)),
        decoder=weights.decoder._replace(table=grown(weights.decoder.table)),
        output=grown(weights.output),
    )


def _bias(real: int, size: int) -> Array:
    bias = np.zeros((1, size), np.float32)
    bias[:, real:] = IMPOSSIBLE
    return bias


def _write_tokenizers(tokenizers: Tokenizers, place: Path) -> None:
    """The source's tokenizer beside the model; the target's in a folder of its own where it is another."""
    _write_tokenizer(tokenizers.source, place)
    if not tokenizers.joint:
        (place / "target").mkdir()
        _write_tokenizer(tokenizers.target, place / "target")


def _write_tokenizer(tokenizer: Tokenizer, place: Path) -> None:
    library = Library.from_str(tokenizer.to_json())
    end = SPECIALS[EOS]
    library.post_processor = TemplateProcessing(single=f"$A {end}", pair=f"$A $B {end}", special_tokens=[(end, EOS)])
    library.save(str(place / "tokenizer.json"))
    names = {"pad_token": PAD, "bos_token": BOS, "eos_token": EOS, "unk_token": UNK}
    _write_json(
        place / "tokenizer_config.json",
        {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
        | {name: SPECIALS[id] for name, id in names.items()},
    )


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
