"""
Your features
=============

Features that were computed elsewhere are enough to compare OOD methods: no network and no images are needed. This
example takes scikit-learn's digits as they are, 64 pixels each. Digits 0 to 5 are in-distribution, 8 and 9 are near
OOD, noise is far OOD.
"""

# %%
# The features
# ------------
# Any array with a row for each sample: numpy's, torch's, JAX's, or memory-mapped from a file
# (``np.load("features.npy", mmap_mode="r")``). ID sets come with their classes.

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

import openbench as ob

X, y = load_digits(return_X_y=True)
X = (X / 16).astype(np.float32)
known = np.flatnonzero(y < 6)
train, id_val, id_test = ((X[rows], y[rows]) for rows in np.split(known, [600, 800]))
noise = np.random.default_rng(0).uniform(size=(300, 64)).astype(np.float32)

# %%
# Methods that read logits need the classifier that made them: weights ``(c, d)`` and biases ``(c,)``. A fitted linear
# model of scikit-learn or a ``torch.nn.Linear`` will do as well.

head = LogisticRegression(max_iter=1000).fit(*train)

# %%
# One call for all methods
# ------------------------
# With OOD validation features, hyper-parameters are chosen on validation, never on the test sets. Nothing is written
# unless ``results=`` names a folder for records. A method is a name, as on the command line, or an object; the
# hyper-parameters of an object stay as they are.

results = ob.evaluate_features(
    train=train,
    id_val=id_val,
    id_test=id_test,
    ood_val=X[y == 6],
    near={"eight": X[y == 8], "nine": X[y == 9]},
    far={"noise": noise},
    head=head,
    methods={"msp": "msp", "mds": "mds", "vim": "vim", "knn5": ob.method("knn", k=5)},
    metrics={"replicates": 0, "correction": "simes"},
)
for name, result in results.items():
    near, far = (result.metrics[group]["auroc"] for group in ("near", "far"))
    print(f"{name:5} AUROC near {near:.3f}, far {far:.3f}, tuned {result.record.tuned or 'nothing'}")

# %%
# One method at a time
# --------------------
# Every method is also an estimator, with scikit-learn's habits. A larger score means more out-of-distribution.

knn = ob.method("knn", k=5).fit(*train)
scores = {"id": knn.score(id_test[0]), "eight": knn.score(X[y == 8])}
print(f"AUROC {ob.metrics.auroc(scores['id'], scores['eight']):.3f}")
print(f"FPR at 95 % TPR {ob.metrics.fpr_at_tpr(scores['id'], scores['eight'], 0.95):.3f}")

# %%
# Scores alone
# ------------
# Scores from anywhere get every metric that a run reports, with intervals.

report = ob.evaluate_scores(scores["id"], near={"eight": scores["eight"]}, far={"noise": knn.score(noise)})
low, high = (report.metrics["eight"][f"auroc_{end}"] for end in ("low", "high"))
print(f"AUROC of eight: 95 % interval {low:.3f} to {high:.3f}")
