"""A fitted estimator: its model, the link from scores to predictions, and its labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from caffelite import functions as f
from caffelite.core.tensor import Tensor

#: Functions from scores to predictions.
LINKS: dict[str, Callable[[Tensor], Tensor]] = {
    "scores": lambda scores: scores,
    "softmax": f.softmax,
    "sigmoid": f.sigmoid,
    "exp": f.exp,
}


class FittedEstimator:
    """A fitted estimator of `caffelite.sklearn`, or anything that has its attributes.

    The attributes are `model_`, the Model, and `_link`, a function from an array of scores to an array of predictions.
    A classifier also has `classes_`, its labels. Raise TypeError for a link that is not in LINKS, ValueError for a
    classifier of one class.
    """

    def __init__(self, estimator: Any) -> None:
        self.model = estimator.model_
        self.classes = getattr(estimator, "classes_", None)
        self.link = _link_name(estimator._link)
        self.is_multilabel = False  # labels a row
        self.has_probabilities = self.link != "scores" or hasattr(estimator, "predict_proba")
        if self.classes is not None and len(self.classes) < 2:
            raise ValueError(f"export: the classifier has learned one class only, {self.classes!r}")

    def finish(self, scores: Tensor) -> Tensor:
        """Return the probabilities of the classes, or of each label of several, or the values of a regressor."""
        outputs = LINKS[self.link](scores)
        if self.classes is None or self.link != "sigmoid":
            return outputs
        outputs = outputs if outputs.ndim == 2 else outputs.reshape(-1, 1)
        self.is_multilabel = outputs.shape[1] > 1
        return outputs if self.is_multilabel else f.concatenate([1 - outputs, outputs], axis=1)


def _link_name(link: Callable[[np.ndarray], Any]) -> str:
    """Return the name of the function in LINKS that computes the same as this link."""
    scores = np.linspace(-2, 2, 6).reshape(2, 3)
    for name, function in LINKS.items():
        if np.allclose(link(scores), function(Tensor(scores)).numpy()):
            return name
    raise TypeError(f"export: the estimator's link is not one of {', '.join(LINKS)}")
