"""Measurements: each script is one command and prints a table; none of them is a test."""
