"""Records what the gates of a running model see and choose, and puts a trace together."""
