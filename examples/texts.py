"""
Features of texts
=================

OOD detection needs no images: any array with a row for each sample will do. Here conversations become rows by TF-IDF
and a truncated SVD, four topics are in-distribution, other topics are near OOD, and other languages are far OOD. The
texts are in the package chatterbot-corpus (BSD licence): ``pip install chatterbot-corpus``.
"""

# %%
# The texts
# ---------
# A conversation is a text, its file is its topic. Of conversations that begin with the same question one is taken: no
# text may be learnt and tested. (``data new`` below found such a pair, which differs in one misspelt word of a
# program.)
import shlex
import tempfile
from importlib.resources import files
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.model_selection import train_test_split

import openbench as ob
from openbench.__main__ import main

CORPUS = files("chatterbot_corpus") / "data"
ID, TUNING = ("ai", "coding", "psychology", "trivia"), ("emotion", "humor")
NEAR = {"arts": ("literature", "movies", "history"), "life": ("food", "money", "sports", "science")}
FAR = ("dutch", "german", "italian", "spanish")


def conversations(language, topic):
    content = yaml.safe_load((CORPUS / language / f"{topic}.yml").read_text(encoding="utf-8"))
    return {
        " ".join(str(first).lower().split()): " ".join(map(str, (first, *turns)))
        for first, *turns in content["conversations"]
    }


def topics(language):
    return sorted(
        file.name.removesuffix(".yml") for file in (CORPUS / language).iterdir() if file.name.endswith(".yml")
    )


seen = set()


def new(language, *names):
    found = {question: text for name in names for question, text in conversations(language, name).items()}
    found = {question: text for question, text in found.items() if question not in seen}
    seen.update(found)
    return list(found.values())


known = {topic: new("english", topic) for topic in ID}
labels = np.array([topic for topic, of_topic in known.items() for _ in of_topic])
unknown = {"ood_val": new("english", *TUNING), **{f"near.{name}": new("english", *t) for name, t in NEAR.items()}}
unknown |= {f"far.{language}": new(language, *topics(language)) for language in FAR}
print({name: len(of_set) for name, of_set in {**known, **unknown}.items()})

# %%
# The features
# ------------
# Everything is fitted on the training texts: vocabulary, weights and directions.
rows, rest = train_test_split(np.arange(len(labels)), train_size=0.5, stratify=labels, random_state=0)
val, test = train_test_split(rest, train_size=0.2, stratify=labels[rest], random_state=0)
whole = np.array([text for of_topic in known.values() for text in of_topic], dtype=object)
tfidf = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), sublinear_tf=True, min_df=2)
svd = TruncatedSVD(64, random_state=0).fit(tfidf.fit_transform(whole[rows]))


def features(some):
    return svd.transform(tfidf.transform(some)).astype(np.float32)


# %%
# A table has a column ``label`` for ID sets. An array without labels will do for OOD sets.
folder = Path(tempfile.mkdtemp())
place = folder.as_posix()  # with slashes on every system
for part, chosen in (("train", rows), ("id_val", val), ("id_test", test)):
    x = features(whole[chosen])
    columns = pa.FixedSizeListArray.from_arrays(x.ravel(), x.shape[1])
    pq.write_table(pa.table({"features": columns, "label": labels[chosen]}), folder / f"{part}.parquet")
unlabelled = {name: features(of_set) for name, of_set in unknown.items()}
for name, x in unlabelled.items():
    np.save(folder / f"{name}.npy", x)

# %%
# A benchmark of them
# -------------------
# Dimensions, NaN, labels, and rows that are in two sets are checked. There are no logits, so a linear head is fitted.


def openbench(command: str) -> None:
    assert main(shlex.split(command)) == 0


sets = [f"{part}={place}/{part}.parquet" for part in ("train", "id_val", "id_test")]
sets += [f"{name}={place}/{name}.npy" for name in unknown]
openbench(f"data new texts --features {' '.join(sets)} --to {place}/texts")
openbench(f"data verify texts --config-dir {place}/texts")

# %%
# Methods
# -------
# The same commands as for images. A method that needs a network or images is refused with the reason, and a sweep
# goes on (``method='glob(*)'`` means all methods). KNN's shipped values of k begin at 50, the size of a whole class
# here, so it gets others. They are chosen on the validation sets.
run = f"--config-dir {place}/texts +benchmark=texts backbone.name=tfidf_svd metrics.replicates=0"
openbench(f"run -m {run} method=mds,residual,vim,msp,energy,odin")
openbench(f"run {run} method=knn 'method._space_.k=[1,2,5,10]'")

# %%
# Energy is first, and distances to means or subspaces are near chance or below it. Text of another kind has little of
# the letter sequences that the directions were learnt from, so its row is short and lies near the origin: logits are
# small there, and so is the residual.
table = ob.records().query("benchmark == 'texts' and role == 'mean'")
table.pivot_table("auroc", "method", "set", observed=True).sort_values("near", ascending=False).round(3)

# %%
rows_of = {"id_test": features(whole[test]), **unlabelled}
print({name: round(float(np.linalg.norm(x, axis=1).mean()), 2) for name, x in rows_of.items()})
