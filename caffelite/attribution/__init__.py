"""Feature attribution: how much each column, or each element of an input, contributes to a model's output.

`shapley.py` computes Shapley values, `explain.py` applies it to any model, and `explanation.py` holds and draws the
results. `integrated_gradients.py` averages gradients along a line.
"""

from caffelite.attribution.explain import explain
from caffelite.attribution.explanation import Explanation
from caffelite.attribution.integrated_gradients import attributions

__all__ = ["Explanation", "attributions", "explain"]
