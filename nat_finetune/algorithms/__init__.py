"""Pure maths on tensors: one idea a file."""
