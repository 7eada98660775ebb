"""What a user of a trace should know before trusting it."""
