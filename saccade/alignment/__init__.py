"""Word alignments out of attention: which heads to read, two directions made one, a head trained for nothing else."""

from saccade.alignment.align import Aligned, Aligner
from saccade.alignment.choice import Choice
from saccade.alignment.symmetry import METHODS, symmetrise

__all__ = ["METHODS", "Aligned", "Aligner", "Choice", "symmetrise"]
