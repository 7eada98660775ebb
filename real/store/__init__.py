"""The experts of a model in one file: as matrices, as bytes, and what they compute."""
