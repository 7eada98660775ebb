"""Published formats of routing: one module each, and what they share in `source`."""
