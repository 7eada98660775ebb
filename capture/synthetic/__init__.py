"""The synthesiser: a small generative model of gate inputs, its presets and its checks."""
