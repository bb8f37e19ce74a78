"""Short experiments to show in a lecture: every number is measured when they run, on Saccade's own layers.

from saccade.explain import explain

explain("scaling").numbers["widths"]
"""

import difflib

import torch

from saccade.display import Display
from saccade.errors import SaccadeError
from saccade.explain import bottleneck, heads, masking, positions, scaling
from saccade.explain.records import Explanation, Table, Topic, Trial

__all__ = ["TOPICS", "Explanation", "Table", "Topic", "Trial", "explain"]

TOPICS: dict[str, Topic] = {
    "scaling": Topic("Why dot products are divided by the root of their width.", scaling.explain),
    "positions": Topic("What attention knows of order: nothing, until it is told.", positions.explain),
    "masking": Topic("Who may look at whom, and what a missing mask does.", masking.explain, steps=250),
    "heads": Topic("What eight heads can do that one of the same size cannot.", heads.explain, steps=400),
    "bottleneck": Topic("One vector for a sentence, against attention.", bottleneck.explain, steps=500),
}


def explain(topic: str, *, seed: int = 1, steps: int | None = None, display: Display | None = None) -> Explanation:
    """Run an experiment. `steps`: train for so many instead of the topic's own number."""
    if topic not in TOPICS:
        near = difflib.get_close_matches(topic, TOPICS, n=1)
        remedy = f"did you mean {near[0]}?" if near else f"known are {', '.join(TOPICS)}"
        raise SaccadeError(f"topic {topic!r} is not known; {remedy}")
    chosen = TOPICS[topic]
    if steps is not None and chosen.steps is None:
        trained = ", ".join(name for name, each in TOPICS.items() if each.steps is not None)
        raise SaccadeError(f"steps={steps}: nothing is trained for {topic}; leave it out (it is for {trained})")
    if not -(2**63) <= seed < 2**63:
        raise SaccadeError(f"seed={seed} is more than 64 bits hold; choose a smaller one")
    if steps is not None and steps < 1:
        raise SaccadeError(f"steps={steps}: train for 1 or more")
    trial = Trial(seed, steps or chosen.steps or 0, display or Display(quiet=True))
    threads = torch.get_num_threads()
    try:
        # These layers are too small to share among cores, and with one thread every machine adds in the same order.
        torch.set_num_threads(1)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return chosen.run(trial)
    finally:
        torch.set_num_threads(threads)
