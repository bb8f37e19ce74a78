"""Corpora that a model writes: distillation and back-translation."""
