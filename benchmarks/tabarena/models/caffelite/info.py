"""What TabArena's registry reads of the model."""

from __future__ import annotations

from tabarena.models._method_metadata import MethodMetadata
from tabarena.models._model_info import ModelInfo
from tabarena.models.caffelite.hpo import gen_caffelite
from tabarena.models.caffelite.model import CaffeliteModel

caffelite_method_metadata = MethodMetadata.config(
    method="caffelite",
    display_name="caffelite",
    ag_key=CaffeliteModel.ag_key,
    model_key="CAFFELITE",
    compute="cpu",
    is_bag=True,
    can_hpo=True,
    config_default="caffelite_c1_default_BAG_L1",
    date="2026-11-29",
    verified=False,
)

caffelite_info = ModelInfo(
    model_cls=CaffeliteModel,
    search_space=gen_caffelite,
    method_metadata=caffelite_method_metadata,
    pip_extra=("caffelite[sklearn,frames]==0.3.0",),
)
