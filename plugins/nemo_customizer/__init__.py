"""NVIDIA NeMo Customizer as a training backend: pairs or demonstrations in, a customized model out, deployed if wished."""
