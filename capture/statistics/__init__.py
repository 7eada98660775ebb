"""Statistics of gates, computed from traces or from models and shown beside published values."""
