"""Decides and simulates expert offloading. Never imports torch."""
