"""Chat models: one provider a file."""
