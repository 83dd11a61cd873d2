"""Agents that learn in imagination, on tensors from the world model's step to the gradient."""
