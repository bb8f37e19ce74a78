"""Kinds of files that can be translated, one room each."""
