"""Detectors: an OOD method on a network with a calibrated threshold, for use after the benchmark.

`detector.Detector` and `saved.load_detector`; `calibration` (thresholds, p-values), `network`, `from_benchmark`
(the command `fit`), `monitor`, `serve`, `recommend`.
"""
