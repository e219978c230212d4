"""Files of models and of training runs: the safetensors format, and a model's structure as text."""
