"""The project's own small models: architectures, recipes, text, tokenizer and evaluation."""
