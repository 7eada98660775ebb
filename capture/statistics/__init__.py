"""Statistics of gates: computed from traces or models, beside what papers print."""
