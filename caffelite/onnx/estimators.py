"""What a fitted estimator has besides its model: the link from scores to probabilities, and the labels."""

from __future__ import annotations

from typing import Any

from caffelite.functions import Concatenate, Sigmoid, SigmoidLoss, Softmax, SoftmaxLoss
from caffelite.tensor import Tensor


class Estimator:
    """An estimator of `caffelite.sklearn`, or anything that has its attributes: `model_`, the Model; `_link`, the loss
    that says what scores mean, or its method `link`; `classes_`, the labels, if it is a classifier.
    """

    def __init__(self, estimator: Any) -> None:
        self.model = estimator.model_
        self.classes = getattr(estimator, "classes_", None)
        link = getattr(estimator, "_link", None)
        link = getattr(link, "__self__", link)
        self.loss = getattr(link, "loss", link)  # of a penalized one, that within

    def finish(self, scores: Tensor) -> Any:
        """The probabilities of the classes, or what a regressor predicts."""
        if self.classes is None:
            return scores
        if isinstance(self.loss, SoftmaxLoss):
            return Softmax().applied_to(scores)
        if isinstance(self.loss, SigmoidLoss):
            p = Sigmoid().applied_to(scores)
            p = p if p.ndim == 2 else p.reshape(-1, 1)
            return Concatenate(1).applied_to(1 - p, p) if p.shape[1] == 1 else p
        return scores

    @property
    def gives_probabilities(self) -> bool:
        """Whether the scores of the classes mean probabilities."""
        return isinstance(self.loss, SoftmaxLoss | SigmoidLoss)
