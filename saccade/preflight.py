"""What a run would need, measured on its own corpus and model without training: `saccade estimate`."""

import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import torch

from saccade.config import Config, known
from saccade.data.batching import Batcher
from saccade.data.prepare import check_corpora, prepare
from saccade.devices import describe_device, device_for
from saccade.display import Display, spell_time
from saccade.distributed.world import World
from saccade.models.build import build_model, count_parameters
from saccade.models.packing import pack
from saccade.planning import Estimate, choose_sides, estimate
from saccade.training.checks import check_lengths, check_together
from saccade.training.padding import choose_padding
from saccade.training.run import resolve

MB = 2**20


class Preflight(NamedTuple):
    """What was found; sizes of memory in bytes, those of a batch a device's share."""

    config: Config
    estimate: Estimate
    device: str
    devices: int
    parameters: int
    pairs: int  # of the corpus
    steps: int  # in an epoch, fractions lost
    longest: tuple[int, int, int]  # pairs, source and target columns of the batch that takes most
    padding: float
    unpadded: bool  # whether the run would go without padding, and capture its steps

    def facts(self) -> dict[str, Any]:
        """Everything, for a program."""
        training, found = self.config.training, self.estimate
        weights = 4 * self.parameters
        return {
            "device": self.device,
            "devices": self.devices,
            "parameters": self.parameters,
            "pairs": self.pairs,
            "batch_tokens": training.batch_tokens,
            "accumulate": training.accumulate,
            "steps_an_epoch": self.steps,
            "max_steps": training.max_steps,
            "padding": self.padding,
            "unpadded": self.unpadded,
            "longest_batch": dict(zip(("pairs", "source", "target"), self.longest, strict=True)),
            "memory": {
                "weights": weights,
                "gradients": weights,
                "moments": 2 * weights,
                "moving_average": weights if training.ema else 0,
                "activations": found.activations,
                "sum": found.memory,
                "free": found.available,
            },
            "pieces": found.pieces,
            "target_tokens_per_second": found.tokens_per_second,
            "seconds": found.seconds,
        }

    def lines(self) -> list[str]:
        """The same, for a reader."""
        training, found = self.config.training, self.estimate
        max_steps, weights = known(training.max_steps), 4 * self.parameters / MB
        held = f"weights {weights:,.0f}, gradients {weights:,.0f}, moments {2 * weights:,.0f}"
        held += f", moving average {weights:,.0f}" if training.ema else ""
        pairs, source, target = self.longest
        share = f" on each of {self.devices} devices" if self.devices > 1 else ""
        parts = {0: "not at all: not even the weights and moments fit; choose a smaller model.size", 1: "at once"}
        if self.devices > 1:
            parts[0] = "not at all with all weights on each device; training.sharding=fsdp shares them out"
        fits = parts.get(found.pieces, f"in {found.pieces} pieces, whose gradients add up to the same step")
        without = ["these are of padded batches: the run goes without padding, which is quicker, and says by how much"]
        each = f"{training.accumulate} batches" if training.accumulate > 1 else "one batch"
        return [
            f"model: {self.parameters:,} parameters on {self.device}, {training.precision}",
            f"batch: at most {training.batch_tokens:,} tokens a side, {each} a step, {self.steps:,} steps through "
            f"{self.pairs:,} pairs; padding {self.padding:.1%}",
            f"longest batch: {pairs:,} pairs of {source} + {target} tokens{share}, which fit {fits}",
            f"memory: {found.memory / MB:,.0f} MB of {found.available / MB:,.0f} MB free{share} ({held}, "
            f"activations {found.activations / MB:,.0f})",
            f"time: {found.tokens_per_second:,.0f} target tokens/s; at most {spell_time(found.seconds)} for "
            f"{max_steps:,} steps ({max_steps / max(1, self.steps):.0f} times through the corpus), beside validation",
            *(without if self.unpadded else []),
        ]


def preflight(config: Config, devices: int, display: Display) -> Preflight:
    """Prepare the corpus in a place that is thrown away, and try the longest batch and a usual one."""
    config = choose_sides(config, config.model)
    device = device_for(config.training.device)
    check_together(config)
    check_corpora(config.data)
    torch.set_num_threads(config.training.threads or torch.get_num_threads())
    with tempfile.TemporaryDirectory(prefix="saccade-") as place:
        prepared = prepare(config, Path(place) / "data", display)
        config, reasons = resolve(prepared, None, device)
        for line in [*prepared.reasons, *reasons]:
            display.say(line)
        check_lengths(config, prepared.train, prepared.valid)
        torch.manual_seed(config.training.seed)
        model = build_model(config, prepared.tokenizers.source.size, prepared.tokenizers.target.size).to(device)
        if device.type == "cpu":
            pack(model)
        batcher = Batcher(
            prepared.train,
            batch_tokens=known(config.training.batch_tokens),
            seed=config.training.seed,
            world=devices,
            mixture=prepared.mixture,
        )
        longest = batcher.longest()
        chosen, _ = choose_padding(config, model, prepared.train, device, World())
        return Preflight(
            config=config,
            estimate=estimate(config, model, batcher, device, devices),
            device=describe_device(device),
            devices=devices,
            parameters=count_parameters(model),
            pairs=prepared.pairs,
            steps=round(batcher.batches_in(0) * prepared.pairs / len(prepared.train)) // config.training.accumulate,
            longest=(len(longest.indices), longest.source.size(1), longest.inputs.size(1)),
            padding=batcher.waste(),
            unpadded=bool(chosen.training.unpadded) and devices == 1,
        )
