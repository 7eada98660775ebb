"""Answers to questions about finished runs: comparisons, explanations and what-ifs."""
