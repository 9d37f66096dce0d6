"""A detector on disk: one folder or zip of safetensors, JSON and perhaps an ONNX graph; no code in it is run."""
