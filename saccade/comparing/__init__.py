"""Recipes side by side: train or load each, measure all alike, write one table and its figures."""
