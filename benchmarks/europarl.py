"""Europarl De→En: what the same minutes on the same device give, with Saccade and with `transformers` MarianMT.

    python -m benchmarks.europarl --data $EUROPARL --minutes 3 --device cuda

Both have the same pairs, tokenizer, validation set, width, layers and minutes (validations and compiling counted), one
after the other. Saccade trains by the recipe of Multi30k, for as long as it may (`--recipe chosen`: as it chooses for
the corpus). MarianMT trains in a plain loop with the settings of its
own project's Transformer: label smoothing 0.1, Adam (0.9, 0.98, 1e-9), 3e-4 after a warm-up, then by the inverse square
root, dropout 0.1, gradients clipped at 5, bf16 on a GPU; batches hold about as many tokens, of sentences of like
length. Each keeps what was best on the validation set, and writes it with a beam of 5.
"""

import argparse
import importlib.util
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.marian import marian
from saccade import api
from saccade.config import Config, known
from saccade.data.batching import Batch, Batcher, collate
from saccade.data.lines import read_lines
from saccade.data.store import Store
from saccade.data.tokenizers import BOS, EOS, PAD, Tokenizers
from saccade.devices import autocast, describe_device, device_for
from saccade.display import Display
from saccade.errors import SaccadeError
from saccade.evaluation.metrics import Score, score_corpus
from saccade.models.build import build_model, count_parameters
from saccade.training.optim import learning_rate
from saccade.translator import Translator

SMOOTHING, RATE, CLIP, BETAS, EPSILON = 0.1, 3e-4, 5.0, (0.9, 0.98), 1e-9
VALIDATIONS = 12  # of MarianMT, in its time
BEAM, ROWS = 5, 64
CHOSEN = "chosen"
RECIPE = Path(__file__).parent.parent / "recipes" / "multi30k-en-de-best.yaml"


def main() -> None:
    args = arguments()
    if importlib.util.find_spec("transformers") is None:
        raise SaccadeError("MarianMT needs transformers, which is not installed: pip install 'saccade[bench]'")
    device = device_for(args.device)
    sides = ("de", "en")
    train, dev = ([args.data / f"{part}.{side}.gz" for side in sides] for part in ("train", "dev"))
    for path in (*train, *dev):
        if not path.exists():
            raise SaccadeError(f"{path}: there is no such file; --data is the folder that holds Europarl's de and en")
    sources, references = (list(read_lines(str(path))) for path in dev)
    given = [f"training.max_minutes={args.minutes}", f"training.device={device}", "training.tensorboard=false"]
    recipe = None if args.recipe == CHOSEN else args.recipe
    given += ["training.max_steps=300000", "training.validate_every=3000"] if recipe else []  # minutes are what ends it
    valid = [str(path) for path in dev]
    translator = api.train(*train, *given, *args.settings, out=args.out, config=recipe, valid=valid)
    rows = {"Saccade": scored([t.text for t in translator.stream(sources)], references)}
    store = Store(args.out / "resume" / "data" / "train")
    peer, steps = trained(translator, store, (sources, references), args, device)
    written = translations(peer, translator.tokenizers, sources, device)
    rows["transformers MarianMT"] = scored(written, references)
    print(json.dumps({name: [score.to_dict() for score in scores] for name, scores in rows.items()}))
    print(
        f"{args.minutes:g} minutes each on {describe_device(device)}, {count_parameters(translator.model):,} parameters"
    )
    print(f"MarianMT took {steps:,} steps")
    for name, scores in rows.items():
        print(f"{name}: {', '.join(f'{score.metric} {score.value:.2f} ({score.signature})' for score in scores)}")


def scored(texts: list[str], references: list[str]) -> list[Score]:
    return score_corpus(texts, references, metrics=("bleu", "chrf"), tokenize="13a")


def trained(
    translator: Translator,
    store: Store,
    dev: tuple[list[str], list[str]],
    args: argparse.Namespace,
    device: torch.device,
) -> tuple[Any, int]:
    """MarianMT after its minutes, with the weights that were best on the validation set, and how many steps it took."""
    config = post_norm(translator.config)
    torch.manual_seed(config.training.seed)
    fresh = build_model(config, *(side.size for side in translator.tokenizers))
    peer = marian(fresh, known(config.model.heads), dropout=0.1, tied=True).to(device)
    fused = device.type == "cuda"
    optimizer = torch.optim.AdamW(peer.parameters(), lr=0.0, betas=BETAS, eps=EPSILON, weight_decay=0.0, fused=fused)
    tokens = known(translator.config.training.batch_tokens)
    batches = cycle_of(Batcher(store, batch_tokens=tokens, seed=1))
    source, target = translator.tokenizers
    pairs = list(zip(source.encode_batch(dev[0]), target.encode_batch(dev[1]), strict=True))
    best, kept, steps, validations = math.inf, {}, 0, 0
    began = time.perf_counter()
    with Display().task("MarianMT", 100) as progress:
        while (share := (time.perf_counter() - began) / (60 * args.minutes)) < 1 or not kept:
            progress(int(100 * share))
            steps += 1
            step(peer, optimizer, next(batches).to(device), steps, args.warmup, device)
            if share >= (validations + 1) / VALIDATIONS or share >= 1:
                validations += 1
                loss = validation(peer, pairs, device)
                if loss < best:
                    best, kept = loss, {name: tensor.clone() for name, tensor in peer.state_dict().items()}
    peer.load_state_dict(kept)
    return peer.eval(), steps


def post_norm(config: Config) -> Config:
    """The shape of a folder's model, with norms where MarianMT has them."""
    return config.with_changes({"model": {"norm": "post", "positions": "sinusoidal", "activation": "relu"}})


def cycle_of(batcher: Batcher) -> Iterator[Batch]:
    return (batch for _, batch in batcher.stream())


def step(peer: Any, optimizer: Any, batch: Batch, number: int, warmup: int, device: torch.device) -> None:
    rate = learning_rate(number, schedule="inverse-sqrt", peak=RATE, warmup=warmup, total=0)
    for group in optimizer.param_groups:
        group["lr"] = rate
    peer.train()
    with autocast(device, "bf16" if device.type == "cuda" else None):
        loss = loss_of(peer, batch, SMOOTHING)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(peer.parameters(), CLIP)
    optimizer.step()


def loss_of(peer: Any, batch: Batch, smoothing: float, reduction: str = "mean") -> Tensor:
    mask = batch.source_mask.long()
    logits = peer(input_ids=batch.source, attention_mask=mask, decoder_input_ids=batch.inputs, use_cache=False).logits
    gold = batch.gold.flatten()
    return F.cross_entropy(
        logits.flatten(0, 1).float(), gold, ignore_index=PAD, label_smoothing=smoothing, reduction=reduction
    )


@torch.no_grad()
def validation(peer: Any, pairs: list[tuple[list[int], list[int]]], device: torch.device) -> float:
    """Negative log-likelihood of the validation set."""
    peer.eval()
    total = 0.0
    for start in range(0, len(pairs), ROWS):
        some = pairs[start : start + ROWS]
        with autocast(device, "bf16" if device.type == "cuda" else None):
            total += loss_of(peer, collate(some, range(len(some))).to(device), 0.0, "sum").item()
    return total


@torch.inference_mode()
def translations(peer: Any, tokenizers: Tokenizers, sources: list[str], device: torch.device) -> list[str]:
    """What `generate()` writes, sentences of like length together."""
    encoded = tokenizers.source.encode_batch(sources)
    order = sorted(range(len(encoded)), key=lambda i: len(encoded[i]))
    written = [""] * len(encoded)
    for start in range(0, len(order), ROWS):
        some = order[start : start + ROWS]
        batch = collate([(encoded[i], []) for i in some], range(len(some))).to(device)
        found = peer.generate(
            input_ids=batch.source,
            attention_mask=batch.source_mask.long(),
            num_beams=BEAM,
            do_sample=False,
            max_new_tokens=2 * batch.source.size(1) + 10,
        )
        for i, row in zip(some, found.tolist(), strict=True):
            ids = [token for token in row if token not in (PAD, BOS)]
            written[i] = tokenizers.target.decode(ids[: ids.index(EOS)] if EOS in ids else ids)
    return written


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", metavar="SECTION.KEY=VALUE", help="of Saccade's run")
    parser.add_argument("--data", type=Path, required=True, help="the folder with train and dev, .de.gz and .en.gz")
    parser.add_argument("--recipe", default=str(RECIPE), help=f"of Saccade's run, or: {CHOSEN}")
    parser.add_argument("--out", type=Path, default=Path("runs/europarl"))
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--warmup", type=int, default=4000, help="steps of MarianMT's warm-up")
    parser.add_argument("--device")
    return parser.parse_intermixed_args()


if __name__ == "__main__":
    try:
        main()
    except SaccadeError as error:
        raise SystemExit(f"error: {error}") from None
