"""ADBench's tables beside the published figures: the columns of `results/adbench/comparison.csv`, and their source."""

SOURCE = "Novello et al., arXiv 2403.11532, tables 6 to 8: ADBench's figures and their conformal correction"
METRICS = {"auroc": "AUROC", "conformal_auroc": "conformal AUROC"}  # key → title
CELL = ("dataset", "method", "metric")
COLUMNS = {**dict.fromkeys(CELL, "str"), **dict.fromkeys(("ours", "std"), "float64"), "draws": "int64"}
COLUMNS |= dict.fromkeys(("published", "difference"), "float64")
