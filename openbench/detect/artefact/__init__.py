"""A detector on disk: one folder or zip of safetensors and JSON, nothing of which is run."""
