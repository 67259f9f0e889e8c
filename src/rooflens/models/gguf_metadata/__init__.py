"""GGUF metadata by architecture: what makes a config.json of each one's keys."""
