"""A sweep on a cluster
====================

Jobs of a cluster share a cache of features and a folder of records. So it does not matter which job computes what, how
many of them run at once, or whether one is killed: what is there is not computed again.
"""

# %%
# On a cluster the last word of each command below would be ``runtime=slurm``, and each job of a sweep one that
# ``sbatch`` is given. Here they are run one after the other in this process: they meet in the same folders, which are
# fresh ones, as a record is deleted below.
import os
import shlex
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

import openbench as ob
from openbench.__main__ import main

shared = Path(tempfile.mkdtemp())
os.environ |= {"OPENBENCH_CACHE": str(shared / "cache"), "OPENBENCH_RESULTS": str(shared / "results")}


def openbench(command: str) -> None:
    assert main(shlex.split(command)) == 0


# %%
# The features first
# ------------------
# On real data this is where the time goes. ``runtime.shards=3`` divides the images of each set in three; a job that has
# made one takes the next that nobody works on, and the last job joins them. The network is trained before, as there are
# no weights of it.
settings = "+benchmark=openset_digits training.recipe.epochs=2"
openbench(f"extract {settings} runtime.shards=3")

# %%
# The columns of the cache, each beside its digest. Any number of shards gives the same bytes.
for file in sorted((shared / "cache").rglob("features.npy"))[:4]:
    print(f"{file.parent.name[:8]}…/{file.name}: {file.stat().st_size:,} bytes")

# %%
# Then the methods
# ----------------
# The jobs of this sweep find the features, whichever machine they run on.
openbench(f"run -m {settings} method=msp,knn")

# %%
# A sweep that was killed
# -----------------------
# Let the record of one job be missing, as it is when the cluster has taken the machine away. The same command again
# makes that one; the others end as soon as they have begun, also those that ``runtime=slurm`` sends.
lost = next((shared / "results").rglob("knn/*.json"))
lost.unlink()
openbench(f"run -m {settings} method=msp,knn")

# %%
# Where the time went
# -------------------
# Each record says what its job spent on what, in seconds; none of these jobs passed an image through the network.
spent = {}
for run_id in ob.records().run_id.unique():
    record = ob.load(run_id).record
    spent[record.config["method"]["_name_"]] = record.provenance["seconds"]
    assert record.provenance["passes"] == 0
table = pd.DataFrame(spent).T.fillna(0)
bars = table.plot.barh(stacked=True, xlabel="seconds", figsize=(7, 2.4))
bars.legend(loc="center left", bbox_to_anchor=(1, 0.5))
plt.tight_layout()
plt.show()

# %%
# A network that is far away from the internet, a scheduler's settings, and several graphics cards on one machine: see
# the task :doc:`/do/offline_cluster`.
