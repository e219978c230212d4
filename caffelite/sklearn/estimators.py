"""The estimators. `NetEstimator` and `Perceptron` make their models; `target_encoding` has the rest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from caffelite.core.arrays import check_positive_integer
from caffelite.core.function import Function
from caffelite.functions import BatchNorm, Dropout, Linear, ReLU, Sigmoid, Tanh
from caffelite.model.model import Model
from caffelite.sklearn.base import Estimator
from caffelite.sklearn.net_estimator import NetEstimator, accept_build_arguments
from caffelite.sklearn.target_encoding import Classification, Regression
from caffelite.training.callbacks.advice import accept_merged_layers

ACTIVATIONS: dict[str, type[Function] | None] = {"identity": None, "logistic": Sigmoid, "tanh": Tanh, "relu": ReLU}


@dataclass(eq=False, repr=False)
class Perceptron(Estimator):
    """A multilayer perceptron, drawn as scikit-learn's are, to the same values from the same `random_state`."""

    hidden_layer_sizes: Any = (100,)
    activation: str = "relu"
    _: KW_ONLY
    dropout: float = 0.0
    batch_norm: bool = False

    _model_parameters = ("hidden_layer_sizes", "activation", "dropout", "batch_norm")

    def _build(self, n_features: int, n_outputs: int, dtype: np.dtype, random_state: np.random.RandomState) -> Model:
        hidden = np.atleast_1d(np.asarray(self.hidden_layer_sizes, dtype=object)).tolist()
        sizes = [n_features, *[check_positive_integer("hidden_layer_sizes", size) for size in hidden], n_outputs]
        activation = ACTIVATIONS[self.activation]
        model = Model(dtype=dtype)
        for inputs, outputs in pairwise(sizes[:-1]):
            model.add(Linear(inputs, outputs))
            if self.batch_norm:
                model.add(BatchNorm(outputs))
            if activation is not None:
                model.add(activation())
            if self.dropout > 0:
                model.add(Dropout(self.dropout))
        model.add(Linear(sizes[-2], sizes[-1]))
        if activation is None:
            accept_merged_layers(model)
        self.n_layers_ = len(sizes)
        for layer in self._linear_layers(model):
            limit = np.sqrt((2 if self.activation == "logistic" else 6) / (layer.in_features + layer.out_features))
            for p in layer.parameters():
                p.data = random_state.uniform(-limit, limit, p.shape)
        return model

    @staticmethod
    def _linear_layers(model: Model) -> list[Linear]:
        return [function for function in model.functions if isinstance(function, Linear)]

    @property
    def coefs_(self) -> list[np.ndarray]:
        """The weights of the layers, (inputs, outputs); the model's own arrays. A value that you set is copied."""
        check_is_fitted(self)
        return [layer.weight.data for layer in self._linear_layers(self.model_)]

    @coefs_.setter
    def coefs_(self, values: Iterable[Any]) -> None:
        for layer, value in zip(self._linear_layers(self.model_), values, strict=True):
            layer.weight.data = value

    @property
    def intercepts_(self) -> list[np.ndarray]:
        """The biases of the layers, (outputs,); the model's own arrays. A value that you set is copied."""
        check_is_fitted(self)
        return [layer.bias.data for layer in self._linear_layers(self.model_) if layer.bias is not None]

    @intercepts_.setter
    def intercepts_(self, values: Iterable[Any]) -> None:
        for layer, value in zip(self._linear_layers(self.model_), values, strict=True):
            assert layer.bias is not None
            layer.bias.data = value


@accept_build_arguments
@dataclass(eq=False, repr=False)
class NetClassifier(NetEstimator, Classification):
    """A classifier of any Model of your own, with scikit-learn's targets, training and parameters.

        NetClassifier(lambda features, outputs: cl.Model([cl.Linear(features, 64), cl.GELU(), cl.Linear(64, outputs)]))

    Parameters
    ----------
    build : callable (n_features, n_outputs) -> Model
        Makes a new model of scores. `n_outputs` is the number of classes, or 1 for two classes. For an indicator
        matrix, it is the number of labels. X may have any number of axes. `n_features` is the length of a row, or its
        shape (3, 32, 32) if X has more than two axes. The model is converted to X's dtype. Parameters that were not
        trained or loaded are drawn from `random_state`. A function that can be imported is pickled with the estimator;
        a lambda can't be. If the first parameter is called `frame`, X is a frame. `build` gets a pandas or polars frame
        as it is, and any other as a narwhals frame. The model then has to begin with `cl.Columns(frame)`, and is made
        in float32.
    build__name
        Arguments of `build` by name, such as `build__width=64`. A search may vary them.
    loss : Loss, optional
        Instead of SoftmaxLoss and SigmoidLoss, a loss whose `link` gives probabilities, such as FocalLoss. Unless it is
        a SigmoidLoss, two classes have two outputs.
    optimizer : callable (parameters) -> Optimizer, optional
        Instead of the solver's optimizer: `lambda ps: cl.AdamW(ps, lr=1e-3)`, or a class, `cl.Lion`.
    scoring : str or callable (estimator, X, y) -> float, optional
        The score that `early_stopping` and `validation_scores_` use, as in scikit-learn's searches: "f1_macro", for
        example. By default, it is `score`.

    All other parameters and attributes are as in `MLPClassifier`, except `coefs_`, `intercepts_` and `n_layers_`.
    `alpha` applies to all parameters of two axes or more. `row_shape_` is the shape of a row.
    """


@accept_build_arguments
@dataclass(eq=False, repr=False)
class NetRegressor(NetEstimator, Regression):
    """A regressor of any Model of your own, with scikit-learn's training and parameters.

        NetRegressor(lambda features, outputs: cl.MLP(features, [64, outputs], cl.Tanh))

    Parameters
    ----------
    build : callable (n_features, n_outputs) -> Model
        As for `NetClassifier`; `n_outputs` is the number of targets per row.
    build__name, optimizer, scoring
        As for `NetClassifier`.
    loss : Loss, "squared_error" or "poisson", optional
        Instead of the squared error, a loss such as HuberLoss().

    All other parameters and attributes are as in `MLPRegressor`, except `coefs_`, `intercepts_` and `n_layers_`.
    `alpha` applies to all parameters of two axes or more.
    """


@dataclass(eq=False, repr=False)
class MLPClassifier(Perceptron, Classification):
    """A multilayer perceptron that classifies, with scikit-learn's parameters, attributes and objective.

    It minimizes (Σ l + alpha/2 Σ W²) / n for the n rows of each batch. l is the logarithmic loss of a row, summed over
    its labels if it has several. W are the weights, not the biases. The same `random_state` gives scikit-learn's
    initial weights and the rows that its `early_stopping` holds out, but a different order of rows.

    Parameters
    ----------
    hidden_layer_sizes, activation, solver, alpha, batch_size, learning_rate, learning_rate_init, power_t, max_iter, \
    shuffle, random_state, tol, verbose, warm_start, momentum, nesterovs_momentum, early_stopping, \
    validation_fraction, beta_1, beta_2, epsilon, n_iter_no_change, max_fun
        As for `sklearn.neural_network.MLPClassifier`.
    dropout : float in [0, 1)
        The share of each hidden layer's outputs that is dropped in training. It can't be used with "lbfgs", which needs
        the same loss each time.
    batch_norm : bool
        Whether each hidden layer's products are normalized before its activation (`cl.BatchNorm`).
    class_weight : {class: weight}, "balanced" or None
        The weight of each class, as in scikit-learn's classifiers. It multiplies `sample_weight`. With an indicator
        matrix, give a list with one for each label. Validation does not use it.
    callbacks : list of callables (epoch, history)
        As for `cl.Model.fit`; see `cl.callbacks`. `history` has `val_loss` if there are validation rows.
        `set_callbacks` sets scikit-learn's own callbacks (since 1.9).

    Attributes
    ----------
    model_ : Model
        The trained model. Its outputs are scores; `predict_proba` turns them into probabilities.
    history_ : History
        Of the last call of `fit` or `partial_fit`.
    coefs_, intercepts_
        As scikit-learn's; the model's own arrays.
    loss_, best_loss_, loss_curve_
        As scikit-learn's, the penalty included.
    classes_, validation_scores_, best_validation_score_, t_, n_iter_, n_layers_, n_outputs_, out_activation_, \
    n_features_in_, feature_names_in_
        As scikit-learn's.

    Differences from scikit-learn's, apart from speed:

    - If X is float32, everything is computed in float32, and otherwise in float64.
    - `warm_start` keeps the optimizer's memory: Adam's moments and the velocity. Learning rates start over.
      `partial_fit` draws a new order of rows at each call; scikit-learn's draws the same one.
    - Adam's ε is added to √v̂, after the correction for the first steps (Kingma and Ba's algorithm 1). The velocity
      does not include the learning rate, so another rate takes effect at once.
    - In an epoch's loss, the weight of a batch is its number of rows. With several outputs, `fit` minimizes the sum of
      their losses.
    - If the loss or a gradient is not finite, training ends with a ValueError that names the batch. With
      `early_stopping`, it warns instead and keeps the best model so far.
    - `predict_log_proba` is computed from scores. So it is finite even if a probability is 0 or 1.

    A row's prediction does not depend on the other rows. No result depends on the number of threads. D. Kingma and J.
    Ba, ICLR 2015; X. Glorot and Y. Bengio, AISTATS 2010; D. C. Liu and J. Nocedal, 1989 (`cl.minimize`).
    """


@dataclass(eq=False, repr=False)
class MLPRegressor(Perceptron, Regression):
    """A multilayer perceptron that predicts numbers, with scikit-learn's parameters, attributes and objective.

    It minimizes (Σ l + alpha/2 Σ W²) / n for the n rows of each batch. l is half the squared error of a row, summed
    over its targets. With `loss="poisson"`, it is half the deviance of counts whose rate is the exponential of the
    output. W are the weights, not the biases.

    Parameters
    ----------
    loss : "squared_error" or "poisson"
        Keyword only.

    All other parameters are as in `MLPClassifier`, except `class_weight`. So are the attributes, except `classes_`. The
    same differences from scikit-learn apply. Scores on validation rows are R².
    """
