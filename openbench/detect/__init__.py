"""A detector for use outside the benchmark: an OOD method on a network, with a calibrated threshold.

`detector.Detector` and `detector.load_detector`; `calibration` (thresholds, p-values), `given_images` and `features`
(from a user's images to tensors), `saved`, `state` and `files` (the format on disk), `export` (ONNX), `from_benchmark`
(`fit`), `monitor`, `serve`, `recommend`.
"""
