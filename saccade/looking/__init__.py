"""Where a model looks, drawn. The rooms here know arrays and words, and no model."""

from saccade.looking.show import Shown, show
from saccade.looking.terminal import crosses, draw_alignment, merge_to_words

__all__ = ["Shown", "crosses", "draw_alignment", "merge_to_words", "show"]
