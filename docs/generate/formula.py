"""Formulas as docstrings write them, in plain Unicode, as TeX.

A docstring says `score(x) = −log Σ_c exp z_c, with z the logits`. Here the mathematics of such a sentence is told from
its words, and each stretch of it becomes TeX, which the manual shows as MathML.
"""

import re
import unicodedata
from functools import cache

from latex2mathml.converter import convert

_FUNCTIONS = (
    "log exp max min cos sin tanh arccos softmax sign relu sigmoid mean std median round argmax argmin var tr diag rank"
)
_OPERATORS = frozenset([*_FUNCTIONS.split(), "score", "CE", "KL", "JS", "top", "erf", "logsumexp", "dist"])
_KNOWN = frozenset(["log", "exp", "max", "min", "cos", "sin", "tanh", "arccos"])  # commands of TeX
_RELATIONS = "=<>≤≥≠∈∉⊂∪∩+−·×/|‖√Σ∏∫∂∇⊙∘≈∝∞→±⌊⌋⌈⌉∧∨¬⟨⟩^_"
_MATHEMATICAL = re.compile(rf"[{re.escape(_RELATIONS)}]|[α-ωΑ-Ω]|[⁰¹²³⁴-⁹⁺⁻ᵀₐ-ₜ₀-₉₍₎ᵢⱼ]|[̂̃̄]")
_ACCENTS = {"\u0302": "hat", "\u0303": "tilde", "\u0304": "bar", "\u0307": "dot", "\u030c": "check"}
_RAISED = {
    **dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁱⁿ", "0123456789+-()in", strict=True)),
    "ᵀ": "\\top ",
    "ᵈ": "d",
    "ᵏ": "k",
    "ᵖ": "p",
}
_LOWERED = {
    **dict(zip("₀₁₂₃₄₅₆₇₈₉₊₋₍₎", "0123456789+-()", strict=True)),
    **dict(zip("ₐₑₒₓₕₖₗₘₙₚₛₜᵢⱼ", "aeoxhklmnpstij", strict=True)),
}
# Private signs that stand for what decomposition or TeX would change.
_NOT_EQUAL, _LEFT, _RIGHT = "\ue000", "\ue001", "\ue002"
_SIGNS = {
    "‖": r"\|", "·": r"\cdot ", "×": r"\times ", "−": "-", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "∈": r"\in ",
    "∉": r"\notin ", "∪": r"\cup ", "∩": r"\cap ", "∞": r"\infty ", "→": r"\to ", "≈": r"\approx ", "∝": r"\propto ",
    "∇": r"\nabla ", "∂": r"\partial ", "⊙": r"\odot ", "∘": r"\circ ", "±": r"\pm ", "⟨": r"\langle ",
    "⟩": r"\rangle ", "⌊": r"\lfloor ", "⌋": r"\rfloor ", "⌈": r"\lceil ", "⌉": r"\rceil ", "…": r"\dots ",
    "∏": r"\prod ", "∫": r"\int ", "Φ": r"\Phi ", "Σ": r"\Sigma ", "Λ": r"\Lambda ", "Δ": r"\Delta ", "Ω": r"\Omega ",
    "Γ": r"\Gamma ", "Π": r"\Pi ", "Θ": r"\Theta ", "Ψ": r"\Psi ", "%": r"\%", "&": r"\&", "#": r"\#", "∧": r"\wedge ",
    "ℓ": r"\ell ", "½": r"\tfrac{1}{2}", "¼": r"\tfrac{1}{4}", "∅": r"\emptyset ", "⊥": r"\perp ", "∥": r"\parallel ",
    _NOT_EQUAL: r"\ne ", _LEFT: r"\{", _RIGHT: r"\}", "~": r"\sim ",
}  # fmt: skip
_NAMES = """alpha beta gamma delta varepsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau upsilon
varphi chi psi omega"""
_GREEK = dict(zip("αβγδεζηθικλμνξπρστυφχψω", _NAMES.split(), strict=True))
_OPENING, _CLOSING = "([{", ")]}"
_LITTLE_WORDS = frozenset(["in", "by", "of", "or", "at", "to", "if", "is", "as", "no", "on", "an"])
_MARKS = "[\u0302\u0303\u0304\u0307\u030c]"
_SUBSCRIPT = re.compile(rf"[_^]((?:[A-Za-z0-9α-ωℓ∞*]{_MARKS}?)+)")
_TOKEN = re.compile(r"\S+?(?=-th\b)|\S+|\s+")


def sentence(text: str) -> str:
    r"""Return a sentence with its mathematics between `$` signs, as MyST reads it.

    Args:
        text: a paragraph of a docstring, in one line.

    Returns:
        The same words; each stretch of mathematics as `$TeX$`; what stands in backticks is left as it is.
    """
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else _marked(part) for part in parts)


def tex(formula: str) -> str:
    r"""Return a formula in Unicode as TeX: `‖f − μ_c‖²` becomes `\|f - \mu _{c}\|^{2}`."""
    text = unicodedata.normalize("NFD", _braces(formula.replace("≠", _NOT_EQUAL)))
    return re.sub(r" +", " ", "".join(_pieces(text))).strip()


def _marked(text: str) -> str:
    """Split into words and mathematics, and mark the mathematics."""
    result, run, depth = list[str](), list[str](), 0
    tokens = _TOKEN.findall(text)
    for at, token in enumerate(tokens):
        if token.isspace():
            (run if run else result).append(" ")
            continue
        if depth <= 0 and not _is_mathematics(token, tokens, at):
            result += _closed(run)
            run, depth = [], 0
            result.append(_words(token))
            continue
        run.append(token)
        depth += sum(map(token.count, _OPENING)) - sum(map(token.count, _CLOSING))
        if depth <= 0 and token[-1] in ",;:.":
            result += _closed(run)
            run, depth = [], 0
    return "".join(result + _closed(run))


def _closed(run: list[str]) -> list[str]:
    """A stretch of mathematics between `$` signs, its closing punctuation and spaces outside."""
    text = "".join(run)
    inner = text.rstrip(" ,;:.")
    if not inner:
        return [text]
    opened = sum(map(inner.count, _OPENING)) - sum(map(inner.count, _CLOSING))
    before = ""
    if opened > 0 and inner[0] in _OPENING:  # a remark in brackets that begins with a formula
        before, inner = inner[0], inner[1:]
    after = ""
    if opened < 0 and inner[-1] in _CLOSING:
        inner, after = inner[:-1], inner[-1]
    return [before, _shown(inner), after, text[len(text.rstrip(" ,;:.")) :]]


@cache  # methods share half of them
def _shown(formula: str) -> str:
    """A formula between `$` signs; as words if it is none, such as a name with two underscores."""
    if not formula:
        return ""
    found = tex(formula)
    try:
        convert(found)
    except Exception:  # the library raises a class of its own for each kind of mistake
        return _words(formula)
    return f"${found}$"


def _is_mathematics(token: str, tokens: list[str], at: int) -> bool:
    core = token.strip("$()[]{},;:.’'\"")
    if not core:
        return False
    if call := re.match(r"[(\[]*([A-Za-z]+)[(]", token):
        return call.group(1) in _OPERATORS or len(call.group(1)) == 1
    if re.fullmatch(r"[A-Za-z]{2,}(_[A-Za-z]\w+)+", core) or re.search(r"[./]/|/[A-Za-z]{3}|[A-Za-z]{3}/", core):
        return core.partition("_")[0] in _OPERATORS  # a name with underscores, or a path
    if re.fullmatch(r"[A-Za-z]{2,}(-[A-Za-z]+)*", core):
        return core in _OPERATORS and _operand_follows(tokens, at)
    if re.fullmatch(r"[A-Za-z]+(['’]s?)?|[A-Za-z]+/[A-Za-z]{2,}|[A-Z]\.", core):
        article = core in ("a", "A", "I")
        return len(core) == 1 and not (article and _word_follows(tokens, at))
    if re.fullmatch(r"\d[\d,.]*|\.\d+", core):
        return _beside_mathematics(tokens, at)
    if core in ("–", "-", "&"):
        return False
    return bool(_MATHEMATICAL.search(unicodedata.normalize("NFD", core)))


def _operand_follows(tokens: list[str], at: int) -> bool:
    """Whether a function's name is used as one: `exp z_c`, `max_c`, not `the mean of`."""
    if re.search(r"[(\[_]", tokens[at]):
        return True
    after = tokens[at + 2] if at + 2 < len(tokens) else ""
    return bool(after) and not re.fullmatch(r"[(]?[A-Za-z]{2,}[,.;:)]*", after) and tokens[at][-1] not in ",;:."


def _word_follows(tokens: list[str], at: int) -> bool:
    return at + 2 < len(tokens) and bool(re.match(r"[(]?[A-Za-z]{2,}", tokens[at + 2]))


def _beside_mathematics(tokens: list[str], at: int) -> bool:
    """Whether a number stands beside a sign, as in `k = 50`."""
    around = [tokens[i] for i in (at - 2, at + 2) if 0 <= i < len(tokens)]
    return any(token in "=<>≤≥+−·×/" for token in around)


def _words(token: str) -> str:
    return re.sub(r"([$*_<])", r"\\\1", token)


def _pieces(text: str) -> list[str]:
    """The parts of a decomposed text in TeX, one after another."""
    pieces, at = list[str](), 0
    while at < len(text):
        sign = text[at]
        if word := re.match(r"[A-Za-z]{2,}", text[at:]):
            pieces.append(_name(word.group(), at))
            at += word.end()
            continue
        if numbered := re.match(r"₍(\w+)₎", text[at:]):  # the k-th in order
            pieces.append(f"_{{({numbered.group(1)})}}")
            at += numbered.end()
            continue
        if at + 1 < len(text) and text[at + 1] in _ACCENTS:
            pieces.append(rf"\{_ACCENTS[text[at + 1]]}{{{_one(sign)}}}")
            at += 2
            continue
        for signs, mark in ((_RAISED, "^"), (_LOWERED, "_")):
            length = _length(text[at:], signs)
            if length:
                pieces.append(f"{mark}{{{''.join(signs[one] for one in text[at : at + length])}}}")
                at += length
                break
        else:
            piece, used = _other(text, at)
            pieces.append(piece)
            at += used
    return pieces


def _other(text: str, at: int) -> tuple[str, int]:
    """One sign, a subscript without braces, a root, or a sum."""
    sign = text[at]
    if sign in "_^" and (found := _SUBSCRIPT.match(text, at)):
        inner = found.group(1)
        short = len(re.sub(_MARKS, "", inner)) <= 2 or inner.isdigit()
        shown = "".join(_pieces(inner)) if short else rf"\mathrm{{{inner}}}"
        return f"{sign}{{{shown}}}", len(found.group())
    if sign == "√" and (under := _under_the_root(text[at + 1 :])):
        inner = under[1:-1] if under[0] == "(" else under
        return rf"\sqrt{{{''.join(_pieces(inner))}}}", 1 + len(under)
    if sign == "Σ" and _is_sum(text[at + 1 :]):
        return r"\sum ", 1
    return _one(sign), 1


def _is_sum(rest: str) -> bool:
    """Whether what follows a Σ makes it a sum; else it is a covariance."""
    if re.match(r"_(\w|\{[^}]*\})([⁺⁻,;:.)]|$)", rest):
        return False
    return bool(re.match(r"_|\w| [^-+−·×=,;:.)\]]", rest))


def _braces(formula: str) -> str:
    """Braces that are no group of a subscript as signs of their own."""
    signs, groups = list(formula), list[bool]()
    for at, sign in enumerate(formula):
        if sign == "{":
            groups.append(at > 0 and formula[at - 1] in "_^")
            signs[at] = sign if groups[-1] else _LEFT
        elif sign == "}" and groups:
            signs[at] = sign if groups.pop() else _RIGHT
    return "".join(signs)


def _under_the_root(rest: str) -> str:
    """What follows a root's sign: a name, or brackets up to the one that closes them."""
    if not rest.startswith("("):
        return match.group() if (match := re.match(r"\w+", rest)) else ""
    depth = 0
    for at, sign in enumerate(rest):
        depth += (sign == "(") - (sign == ")")
        if depth == 0:
            return rest[: at + 1]
    return ""


def _name(word: str, at: int) -> str:
    """A function, a word in the middle of a formula, or a product of variables."""
    if word in _KNOWN:
        return rf"\{word} "
    if word in _OPERATORS:
        return rf"\operatorname{{{word}}}"
    if len(word) > 2 or word in _LITTLE_WORDS:
        return rf"\text{{{' ' * bool(at)}{word} }}"
    return word


def _one(sign: str) -> str:
    if sign in _GREEK:
        return rf"\{_GREEK[sign]} "
    return _SIGNS.get(sign, sign)


def _length(text: str, signs: dict[str, str]) -> int:
    return next((i for i, sign in enumerate(text) if sign not in signs), len(text))
