"""What predictors know beforehand: fitting it, keeping it, and giving it to a run."""
