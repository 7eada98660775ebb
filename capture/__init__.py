"""Records what a real Mixture-of-Experts model's gates see and choose. Uses torch and transformers."""
