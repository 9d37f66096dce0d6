"""Detectors: an OOD method on a network with a calibrated threshold, for use after the benchmark.

`detector.Detector` and `detector.load_detector`; `calibration` (thresholds, p-values), `network`, `from_benchmark`
(the command `fit`), `monitor`, `serve`, `recommend`.
"""
