"""How MoE layers, routers, norms and experts are found in a transformers model."""
