"""From a trace to the steps of a run: which rows run together, and what each gate needs."""
