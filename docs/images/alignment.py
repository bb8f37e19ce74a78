"""Draws docs/images/alignment.svg from the model that `make demo` leaves in runs/demo.

python docs/images/alignment.py
"""

from pathlib import Path

import matplotlib.pyplot as plt

import saccade

plt.rcParams["svg.fonttype"] = "none"
plt.rcParams["svg.hashsalt"] = "saccade"

translator = saccade.load("runs/demo")
sentences = ["Tuesday, March 30, 2021, 9:12 AM", "49 days ago"]
figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), width_ratios=[6, 3.4])
for axis, sentence in zip(axes, sentences, strict=True):
    t = translator.translate(sentence)
    axis.imshow(t.word_attention, cmap="cividis", vmin=0, vmax=1)
    axis.set_xticks(range(len(t.source_words)), t.source_words, rotation=35, ha="left", rotation_mode="anchor")
    axis.xaxis.tick_top()
    axis.set_yticks(range(len(t.target_words)), t.target_words)
    axis.tick_params(length=0)
    for row, weights in enumerate(t.word_attention):
        for column, weight in enumerate(weights):
            if weight > 0.2:
                colour = "black" if weight > 0.6 else "white"
                axis.text(column, row, f"{weight:.2f}".lstrip("0"), ha="center", va="center", fontsize=8, color=colour)
    for side in axis.spines.values():
        side.set_visible(False)
figure.tight_layout()
out = Path(__file__).with_suffix(".svg")
figure.savefig(out, metadata={"Date": None}, facecolor="white")
