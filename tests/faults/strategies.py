"""What anybody may type or write: overrides, names, lists and config files; sound, odd and damaged."""

import csv
import io

from hypothesis import strategies as st

# Everything that Hydra's grammar, yaml, paths, terminals or Python read in a way of their own.
WORDS = r"""
null true nan inf -inf 1e999 -1 0 3 0.5 1_0 0x10 ??? [ ] [1,2 {a:1} {a:1 [1,[2,{b:c}]] 1,2 a,b , : = == a=b + ~ -m @
${seed} ${ $ ${nosuch} ${oc.env:HOME} ${now:%Y} ${method} \${seed} %s {} {0} glob(*) range(1,3) choice(1,2) sort(2,1)
shuffle(a,b) int(3.5) str(1) tag(a,1) extend_list(1) ' " 'a' "a a'b \ \' ../x / .. a/b a.b . * ? # &a *a _target_
!!python/object:os.system openbench.methods.msp.MSP os.system builtins.print README con - -- | <b> =1+1 é 😀
"""
SPECIAL = (*WORDS.split(), *"\n\t\r\0\u202e\u2028\ud800 ", "", "\x1b[2J", "1" * 400, "x" * 300)
TEXTS = st.one_of(
    st.sampled_from(SPECIAL),
    st.text(max_size=12),
    st.text("[]{}(),:=+~@$'\"\\ ./*?#&!|-_a1\n", max_size=8),
    st.lists(st.sampled_from(SPECIAL), min_size=2, max_size=3).map("".join),
)
NUMBERS = st.one_of(st.integers(-3, 3), st.integers(), st.floats()).map(str)
# Places for files are left out: any text is a good one. So is what would take long and is not wrong.
KEYS = """
method method.k method._target_ method._name_ method.nosuch method._space_ method._space_.k backbone backbone.weights
backbone.arch backbone.num_classes backbone.preprocess training training.recipe.lr training.recipe.batch_size
training.recipe.augment tune tune.strategy metrics metrics.confidence metrics.seed metrics.fpr metrics.nosuch seed
nosuch nosuch.a.b benchmark benchmark.name benchmark.near benchmark.near.birds benchmark.near.birds.manifest
benchmark.id.train benchmark.incomplete benchmark.ood_val benchmark.far.x runtime runtime.device runtime.precision
runtime.batch_size runtime.score_batch runtime.on_existing runtime.train dataset augment scorer outliers
dataset@benchmark.near.x dataset@outliers backbone@backbone.member hydra.run.dir hydra.job.name hydra/launcher
hydra.sweep.dir hydra.nosuch hydra.output_subdir
"""
SOUND = """
method=msp method=energy method=vim method.k=2 method.k='3' ++method.k=1 ~method._space_ tune=none
metrics.confidence=0.9 metrics.seed=1 metrics.replicates=9 runtime.batch_size=3 runtime.score_batch=5
"""


@st.composite
def overrides(draw: st.DrawFn) -> str:
    """One word of a command line, with a NUL nowhere, as no system passes one on."""
    if draw(st.integers(0, 4)) == 0:
        return draw(st.sampled_from(SOUND.split()))
    sign = draw(st.sampled_from(["", "", "", "+", "++", "~"]))
    key = draw(st.one_of(st.sampled_from(KEYS.split()), st.sampled_from(KEYS.split()), TEXTS))
    equals = draw(st.sampled_from(["=", "=", "=", "=", "", ":", " = "]))
    value = draw(st.one_of(TEXTS, TEXTS, NUMBERS))
    return f"{sign}{key}{equals}{value}".replace("\0", "")


NAMES = st.one_of(
    st.sampled_from([text for text in SPECIAL if "\0" not in text]),
    st.text(st.characters(exclude_characters="\0"), max_size=12),
    st.sampled_from(["near", "id", "far", "csid", "overall", "NEAR", "birds", "a" * 101, "cifar10", "digits", "None"]),
)


@st.composite
def lists(draw: st.DrawFn) -> tuple[str, list[tuple[str, str]]]:
    """The text of a sound `path,label` list, and its rows."""
    keys = draw(st.lists(st.sampled_from([f"{n:02d}.png" for n in range(12)]), unique=True, min_size=1))
    rows = [(key, draw(st.sampled_from(["-", "wren", "x,y", "é", 'q"q']))) for key in keys]
    out = io.StringIO()
    quoting = draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]))
    writer = csv.writer(out, quoting=quoting, lineterminator=draw(st.sampled_from(["\n", "\r\n"])))
    writer.writerows([("path", "label"), *rows])
    return out.getvalue(), rows


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """The bytes of a text file after one to three accidents."""
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, len(content)))
        kind = draw(st.sampled_from(["cut", "byte", "gone", "put", "line", "encoding"]))
        if kind == "cut":
            content = content[:place]
        elif kind == "byte":
            content = content[:place] + bytes([draw(st.integers(0, 255))]) + content[place + 1 :]
        elif kind == "gone":
            content = content[:place] + content[place + draw(st.integers(1, 8)) :]
        elif kind == "put":
            content = content[:place] + draw(TEXTS).encode(errors="surrogatepass") + content[place:]
        elif kind == "line":
            lines = content.splitlines(keepends=True)
            chosen = draw(st.integers(0, max(0, len(lines) - 1)))
            content = b"".join([*lines[:chosen], *lines[chosen : chosen + 1], *lines[chosen:]])
        else:
            text = content.decode(errors="replace")
            content = text.encode(draw(st.sampled_from(["utf-16", "utf-8-sig", "utf-32"])), "replace")
    return content
