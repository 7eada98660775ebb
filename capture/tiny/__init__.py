"""The project's own small models: architectures, recipes and tokenizer."""
