"""Print time and memory of methods that read texts, patches or a stream, at ImageNet's size, in limited memory.

    OMP_NUM_THREADS=1 python scripts/bench_texts.py FOLDER
    OMP_NUM_THREADS=1 python scripts/bench_texts.py FOLDER --methods neglabel,gl_mcm --images 1000 --memory 4

1,000 classes in 512 dimensions, as CLIP's ViT-B/16 has, embeddings of as many words as WordNet's two shipped lists
have, 196 patches an image in float16; all are synthetic, in files below FOLDER that are mapped. `coop` and `locoop` are
one step of learning 16 vectors, on 32 images and `--classes` classes, with the text tower of open_clip's ViT-B-16 and
random weights. Each runs in a process of its own whose anonymous memory is limited (RLIMIT_DATA): one that needs more
fails, and the table says so. Seconds are processor time of one thread; *extra* is the peak of anonymous memory above
the start, in MiB.
"""

import argparse
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import torch
from bench_methods import Data, measured  # beside this script
from bench_scale import CLASSES, Row, limited, work
from torch import Tensor

from openbench import _compat
from openbench.backbones.heads import PromptLearning, learnt_prompts
from openbench.backbones.open_clip import OpenClipText
from openbench.core.features import FeatureSet, Head
from openbench.core.request import CLASSES as OF_CLASSES, Field, Texts
from openbench.data.manifests import load_words
from openbench.errors import did_you_mean

DIM, PATCHES = 512, 196
METHODS = ("zero_shot_msp", "zero_shot_mls", "zero_shot_energy", "mcm", "neglabel", "csp", "eoe", "clipn", "gl_mcm")
STREAMS: Mapping[str, Mapping[str, object]] = {"adaneg": {}, "adaneg, β = 5.5": {"sharpness": 5.5}}
PROMPTS = ("coop", "locoop")


class Embedded(Mapping[Texts, Tensor]):
    """Mapped unit embeddings of any corpus: of the classes, or as many rows as its list has words."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __getitem__(self, texts: Texts) -> Tensor:
        count = CLASSES if texts.words == OF_CLASSES else len(load_words(texts.words, texts.without))
        return mapped(self._folder / f"{texts.words}_{texts.tower}_{count}.npy", (count, DIM))

    def __iter__(self) -> Iterator[Texts]:
        return iter(())

    def __len__(self) -> int:
        return 0


def mapped(file: Path, shape: tuple[int, ...], dtype: str = "float32") -> Tensor:
    """Return unit vectors around a common direction, as embeddings have, from a file that is made if it is missing."""
    if not file.exists():
        rng = np.random.default_rng(shape[0])
        made = np.lib.format.open_memmap(file, "w+", dtype, shape)
        for start in range(0, shape[0], 512):
            rows = 1 + rng.normal(size=(min(512, shape[0] - start), *shape[1:]))
            made[start : start + len(rows)] = rows / np.linalg.norm(rows, axis=-1, keepdims=True)
        made.flush()
    return torch.from_numpy(np.load(file, mmap_mode="c"))


def made(folder: Path, images: int) -> Data:
    """Return `images` test images with patches, and the head."""
    features = mapped(folder / f"features_{images}.npy", (images, DIM))
    patches = mapped(folder / f"patches_{images}.npy", (images, PATCHES, DIM), "float16")
    texts = Embedded(folder)
    head = Head(100 * texts[Texts(OF_CLASSES)].clone(), torch.zeros(CLASSES), texts=texts)
    columns = {Field.FEATURES: features, Field.LOGITS: head(features), Field.PATCHES: patches}
    x = FeatureSet(columns)
    return Data(x, x, head)


def prompts_work(name: str, data: Data, classes: int) -> Row:
    """Learn prompts for one step of 32 images, and make the classifier."""
    model = _compat.library("open_clip").create_model("ViT-B-16", pretrained=None)
    model.visual = torch.nn.Identity()
    tokenizer = _compat.library("open_clip").get_tokenizer("ViT-B-16")
    tower = OpenClipText(model, tokenizer, "ViT-B-16", tuple(f"class {i}" for i in range(classes)), ("{}",))
    fields = (Field.FEATURES, Field.PATCHES)[: 2 if name == "locoop" else 1]
    columns = {field: data.test.columns[field][:32] for field in fields}
    shots = FeatureSet({**columns, Field.LABELS: torch.arange(32) % classes})
    (taken,), _, extra = measured(lambda: learnt_prompts(tower, shots, shots, PromptLearning(epochs=1)))
    return {"fit": taken, "score": 0.0, "extra": extra}


def line(name: str, row: Row, images: int) -> str:
    """Return a line of the table."""
    if "failed" in row:
        return f"| `{name}` | {row['failed']} | | |"
    scored = f"{1000 * row['score'] / images:.2f}" if row["score"] else ""
    return f"| `{name}` | {row['fit']:.1f} | {scored} | {row['extra']:.0f} |"


def arguments() -> argparse.Namespace:
    known = (*METHODS, *STREAMS, *PROMPTS)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="for the mapped files")
    parser.add_argument("--methods", nargs="+", default=known, metavar="NAME", help=f"of {', '.join(known)}")
    parser.add_argument("--images", type=int, default=2000, help="test images")
    parser.add_argument("--classes", type=int, default=128, help="of coop and locoop")
    parser.add_argument("--memory", type=float, default=8.0, help="limit of anonymous memory, in GiB")
    options = parser.parse_args()
    for name in options.methods:
        if name not in known:
            parser.error(f"method '{name}' not found{did_you_mean(name, known)} — available: {', '.join(known)}")
    return options


def main() -> None:
    options = arguments()
    options.folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # the processes are forks, in which a pool of threads would not run
    data = made(options.folder, options.images)
    print("| method | fit s | score s per 1,000 | extra MiB |\n| --- | ---: | ---: | ---: |")
    for name in options.methods:
        if name in PROMPTS:
            steps = partial(prompts_work, name, data, options.classes)
        else:
            steps = partial(work, name.partition(",")[0], data, **STREAMS.get(name, {}))
        print(line(name, limited(steps, int(options.memory * 2**30)), options.images), flush=True)


if __name__ == "__main__":
    main()
