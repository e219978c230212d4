"""Feature attribution: how much each column, or each element of an input, contributes to an output of a model.

`shapley.py` computes Shapley values, `explain.py` does it for any model, and `explanation.py` holds and draws them.
`integrated_gradients.py` has the gradients along a line.
"""

from caffelite.attribution.explain import explain
from caffelite.attribution.explanation import Explanation
from caffelite.attribution.integrated_gradients import attributions

__all__ = ["Explanation", "attributions", "explain"]
