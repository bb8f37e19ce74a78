"""Attention: one core, with scores, masks and positions as swappable parts."""

from saccade.attention.core import Attention, attend, softmax
from saccade.attention.scores import SCORES, Additive, Dot, ScaledDot, Score

__all__ = ["SCORES", "Additive", "Attention", "Dot", "ScaledDot", "Score", "attend", "softmax"]
