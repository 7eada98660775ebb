"""The experts of a model in one file, as matrices and as bytes, and what they compute."""
