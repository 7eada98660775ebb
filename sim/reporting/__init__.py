"""Figures of runs, and the page that holds them."""
