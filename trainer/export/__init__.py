"""Weights for others: safetensors, and 8 bits."""
