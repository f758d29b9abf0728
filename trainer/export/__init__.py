"""Export of weights: safetensors, and int8."""
