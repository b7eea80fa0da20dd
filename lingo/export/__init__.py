"""Trained models in the layouts of other programs: one file for each layout."""
