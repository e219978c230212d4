r"""Formulas in the texts of `caffelite.exercises`, as LaTeX: a prompt shows "dx = dy Wᵀ", a page a formula."""

import re

FORMULAS = {
    "y = max(x, 0)": r"y = \max(x, 0)",
    "(p − y)²": r"(p - y)^2",
    "2 (p − y)": r"2\,(p - y)",
    "p_k = exp(s_k) / Σ_j exp(s_j)": r"p_k = \frac{e^{s_k}}{\sum_j e^{s_j}}",
    "−log p": r"-\log p",
    "y = x W + b": r"y = x\,W + b",
    "dy Wᵀ": r"\mathrm{d}y\,W^\mathsf{T}",
    "xᵀ dy": r"x^\mathsf{T}\,\mathrm{d}y",
    "w ← w − lr · slope(w)": r"w \leftarrow w - \eta \cdot \mathrm{slope}(w)",
    "y = 1 / (1 + exp(−x))": r"y = \frac{1}{1 + e^{-x}}",
    "y (1 − y)": r"y\,(1 - y)",
    "1 / (1 − p)": r"1 / (1 - p)",
    "1 − p": r"1 - p",
    "y[n, o, i] = Σ_c Σ_j x[n, c, i + j] W[o, c, j] + b[o]": (r"y_{n,o,i} = \sum_{c,j} x_{n,c,i+j}\,W_{o,c,j} + b_o"),
    "y[:, o, i] = Σ_c Σ_j x[:, c, i + j] · W[o, c, j] + b[o]": (r"y_{:,o,i} = \sum_{c,j} x_{:,c,i+j}\,W_{o,c,j} + b_o"),
    "y[n, o, i, j] = Σ_c Σ_a Σ_b x[n, c, i + a, j + b] W[o, c, a, b] + b[o]": (
        r"y_{n,o,i,j} = \sum_{c,a,b} x_{n,c,i+a,j+b}\,W_{o,c,a,b} + b_o"
    ),
    "y = (x − mean) / √(variance + 1e-5)": r"y = \frac{x - \mathrm{mean}}{\sqrt{\mathrm{variance} + 10^{-5}}}",
    "xhat = (x − mean) / std": r"\hat x = \frac{x - \mathrm{mean}}{\mathrm{std}}",
    "dx = (dy − dy.mean(row) − xhat · (dy · xhat).mean(row)) / std": (
        r"\mathrm{d}x = \frac{\mathrm{d}y - \mathrm{mean}(\mathrm{d}y)"
        r" - \hat x \cdot \mathrm{mean}(\mathrm{d}y \cdot \hat x)}{\mathrm{std}}"
    ),
    "y = softmax(q kᵀ / √d) v": r"y = \mathrm{softmax}\left(\frac{q\,k^\mathsf{T}}{\sqrt{d}}\right) v",
    "scores = q kᵀ / √d": r"\mathrm{scores} = q\,k^\mathsf{T} / \sqrt{d}",
    "dv = pᵀ dy": r"\mathrm{d}v = p^\mathsf{T}\,\mathrm{d}y",
    "dp = dy vᵀ": r"\mathrm{d}p = \mathrm{d}y\,v^\mathsf{T}",
    "dq = ds k / √d": r"\mathrm{d}q = \mathrm{d}s\,k / \sqrt{d}",
    "dk = dsᵀ q / √d": r"\mathrm{d}k = \mathrm{d}s^\mathsf{T} q / \sqrt{d}",
    "ds = p (dp − Σ over the row of dp p)": (
        r"\mathrm{d}s = p \left(\mathrm{d}p - \sum_\mathrm{row} \mathrm{d}p\,p\right)"
    ),
    "dc / da": r"\mathrm{d}c / \mathrm{d}a",
    "v ← mu v + g": r"v \leftarrow \mu\,v + g",
    "w ← w − lr v": r"w \leftarrow w - \eta\,v",
    "v = mu · v + g": r"v = \mu\,v + g",
    "w = w − lr · v": r"w = w - \eta\,v",
    "m ← 0.9 m + 0.1 g": r"m \leftarrow 0.9\,m + 0.1\,g",
    "s ← 0.999 s + 0.001 g²": r"s \leftarrow 0.999\,s + 0.001\,g^2",
    "w ← w − lr m̂ / (√ŝ + 1e-8)": r"w \leftarrow w - \eta\,\frac{\hat m}{\sqrt{\hat s} + 10^{-8}}",
    "m̂ = m / (1 − 0.9ᵗ)": r"\hat m = m / (1 - 0.9^t)",
    "ŝ = s / (1 − 0.999ᵗ)": r"\hat s = s / (1 - 0.999^t)",
    "m = β₁ m + (1 − β₁) g": r"m = \beta_1 m + (1 - \beta_1)\,g",
    "s = β₂ s + (1 − β₂) g²": r"s = \beta_2 s + (1 - \beta_2)\,g^2",
    "1 − β₁ᵗ": r"1 - \beta_1^t",
    "1 − β₂ᵗ": r"1 - \beta_2^t",
    "w − lr · (m / (1 − β₁ᵗ)) / (√(s / (1 − β₂ᵗ)) + 1e-8)": (
        r"w - \eta\,\frac{m / (1 - \beta_1^t)}{\sqrt{s / (1 - \beta_2^t)} + 10^{-8}}"
    ),
    "M · N · K": r"M \cdot N \cdot K",
}
PATTERN = re.compile("`[^`]*`|" + "|".join(sorted(map(re.escape, FORMULAS), key=len, reverse=True)))


def format_text(text):
    """Return a task or a hint in Markdown. What is in backticks or indented stays as it is."""

    def replace(match):
        return f"${FORMULAS[match[0]]}$" if match[0] in FORMULAS else match[0]

    blocks = re.split(r"(^    .*$)", re.sub(r"(?<=\S)\n(?=[^\s-])", " ", text), flags=re.MULTILINE)
    return "".join(block if block.startswith("    ") else PATTERN.sub(replace, block) for block in blocks)
