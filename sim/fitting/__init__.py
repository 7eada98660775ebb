"""What policies know before a run: how it is fitted, kept in files, and given to them."""
