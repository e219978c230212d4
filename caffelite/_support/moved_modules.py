"""Modules and attributes that have other names in pickles of older versions. Python asks only for missing modules."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, TypeVar

Kind = TypeVar("Kind", bound=type)

MODULES = {
    "caffelite._kernels.border": "caffelite._kernels.bindings",
    "caffelite.core.cautions": "caffelite._support.warnings",
    "caffelite.core.tables": "caffelite._support.text_table",
    "caffelite.core.own_loss": "caffelite.functions.losses.function_loss",
    "caffelite.data.columns": "caffelite.tables.column_types",
    "caffelite.data.dates": "caffelite.tables.dates",
    "caffelite.data.sources": "caffelite.data.out_of_core",
    "caffelite.functions.columns": "caffelite.tables.columns",
    "caffelite.functions.composition": "caffelite.functions.combinators",
    "caffelite.functions.distribution": "caffelite.functions.losses.likelihood",
    "caffelite.functions.elementary": "caffelite.functions.math",
    "caffelite.functions.loss": "caffelite.functions.losses",
    "caffelite.functions.rearrangement": "caffelite.functions.shape",
    "caffelite.functions.selection": "caffelite.functions.comparison",
    "caffelite.functions.several": "caffelite.functions.losses.multi_output",
    "caffelite.functions.splines": "caffelite.tables.splines",
    "caffelite.look": "caffelite.visualize",
    "caffelite.look.inspection": "caffelite.visualize.inspection",
    "caffelite.model.minimize": "caffelite.model.lbfgs",
    "caffelite.model.table": "caffelite.tables.table_model",
    "caffelite.sklearn.objective": "caffelite.sklearn.penalized_loss",
    "caffelite.sklearn.rows": "caffelite.sklearn.frame_rows",
    "caffelite.sklearn.tables": "caffelite.sklearn.table_estimators",
    "caffelite.sklearn.targets": "caffelite.sklearn.target_encoding",
    "caffelite.training.averaging": "caffelite.training.callbacks.averaging",
    "caffelite.training.each": "caffelite.training.callbacks.every_n_steps",
    "caffelite.training.logs": "caffelite.training.callbacks.loggers",
}
CLASSES = {
    ("caffelite.core.tables", "Table"): "TextTable",
    ("caffelite.look.inspection", "Layer"): "LayerStatistics",
    ("caffelite.look.inspection", "Parameter"): "ParameterStatistics",
    ("caffelite.sklearn.objective", "Objective"): "PenalizedLoss",
    ("caffelite.sklearn.objective", "PoissonLoss"): "PoissonDeviance",
}


class MovedModules:
    """The last of Python's finders of modules: a module of an old name offers what is in the one that it became."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name in MODULES else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        """Let Python make an empty module."""

    def exec_module(self, module: ModuleType) -> None:
        new, old = import_module(MODULES[module.__name__]), module.__name__

        def find(name: str) -> Any:
            return getattr(new, CLASSES.get((old, name), name))

        vars(module)["__getattr__"] = find


def rename_attributes(**names: str) -> Callable[[Kind], Kind]:
    """Decorate a class whose attributes have the names on the left in pickles of older versions."""

    def decorate(kind: Kind) -> Kind:
        update: Any = getattr(kind, "__setstate__", lambda self, state: self.__dict__.update(state))

        def set_state(self: Any, state: dict[str, Any]) -> None:
            old_names = {old for old, new in names.items() if new not in state}
            update(self, {names[name] if name in old_names else name: value for name, value in state.items()})

        kind.__setstate__ = set_state  # type: ignore[attr-defined]
        return kind

    return decorate
