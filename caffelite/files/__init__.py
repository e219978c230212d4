"""Files of models and trainings: the safetensors format, and a model's structure as text."""
