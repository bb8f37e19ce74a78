"""Folders behind HTTP: a known protocol, one running batch, limits, and a page."""
