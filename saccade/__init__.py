"""Saccade: sequence-to-sequence learning with attention."""
