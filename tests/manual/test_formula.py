"""Formulas of docstrings become TeX, words stay words."""

import pytest

pytest.importorskip("latex2mathml", reason="extra docs")

from generate.formula import sentence, tex


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        ("−log Σ_c exp z_c", r"-\log \sum _{c} \exp z_{c}"),
        ("‖f̂ − f̂₍k₎‖²", r"\|\hat{f} - \hat{f}_{(k)}\|^{2}"),
        ("(f − μ_c)ᵀ Σ⁺ (f − μ_c)", r"(f - \mu _{c})^{\top } \Sigma ^{+} (f - \mu _{c})"),
        ("Σ_{c≠ŷ} z_c", r"\sum _{c\ne \hat{y}} z_{c}"),
        ("μ_ŷ", r"\mu _{\hat{y}}"),
        ("√(a + b) / √n", r"\sqrt{a + b} / \sqrt{n}"),
        ("x ∈ {0, 1}ᵈ", r"x \in \{0, 1\}^{d}"),
        ("p_min", r"p_{\mathrm{min}}"),
        ("(Σ + I)⁻¹", r"(\Sigma + I)^{-1}"),
    ],
)
def test_a_formula_as_tex(formula, expected):
    assert tex(formula) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("the mean of all samples", "the mean of all samples"),
        ("a score is larger for OOD", "a score is larger for OOD"),
        (
            "score(x) = −max_c z_c, with z the logits",
            r"$\operatorname{score}(x) = -\max _{c} z_{c}$, with $z$ the logits",
        ),
        ("the k-th nearest", "the $k$-th nearest"),
        ("`f_c` as written", "`f_c` as written"),
        ("monte_carlo, or none", r"monte\_carlo, or none"),
        ("below $OPENBENCH_CACHE or ./results", r"below \$OPENBENCH\_CACHE or ./results"),
    ],
)
def test_mathematics_is_told_from_words(text, expected):
    assert sentence(text) == expected
