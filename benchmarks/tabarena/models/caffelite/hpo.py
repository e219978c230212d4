"""The parameters of the estimators that TabArena tunes, around their defaults."""

from __future__ import annotations

from autogluon.common.space import Categorical, Real
from tabarena.models.caffelite.model import CaffeliteModel
from tabarena.utils.config_utils import ConfigGenerator

gen_caffelite = ConfigGenerator(
    model_cls=CaffeliteModel,
    manual_configs=[{}],
    search_space={
        "hidden_layer_sizes": Categorical([64, 64], [64], [128, 128], [64, 64, 64], [256, 256]),
        "max_bins": Categorical(32, 8, 16, 64),
        "learning_rate": Real(0.001, 0.02, default=0.005, log=True),
        "weight_decay": Real(0.02, 2.0, default=0.5, log=True),
        "min_frequency": Categorical(2, 1, 5, 20),
    },
)
