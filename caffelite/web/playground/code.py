"""Code: the program that does what the playground does, to read, to copy, and to run."""

from __future__ import annotations

import inspect
import io
from typing import Any

import numpy as np

from caffelite.training.callbacks.advice import accept_merged_layers
from caffelite.web.playground.config import FEATURES, Setting
from caffelite.web.playground.data import DATA, numbers, table
from caffelite.web.playground.names import names, write


def imports_code(setting: Setting) -> str:
    """Return the lines that import modules."""
    return f"{'import csv' * bool(setting.table)}\n\nimport numpy as np\n\nimport caffelite as cl".lstrip()


def data_code(setting: Setting) -> str:
    """Return the lines that make the points, the first of them held out."""
    k, rng = setting.validation_rows, f"np.random.default_rng({setting.seed})"
    split = f"held_out = x[:{k}], y[:{k}]\nx, y = x[{k}:], y[{k}:]"
    if setting.table is None:
        source = source_code(setting.data)
        call = f"{setting.data}({setting.points}, {'' if setting.is_text else f'{setting.noise!r}, '}{rng})"
        if setting.has_features:
            return f"{source}\n\n\npoints, y = {call}\n{features_code(setting)}\n{split}"
        return f"{source}\n\n\nx, y = {call}\n{split}"
    scaled = [_scaling_code("x", k)] if setting.is_classification else [_scaling_code("x", k), _scaling_code("y", k)]
    return "\n".join(
        [
            f"{inspect.getsource(numbers).rstrip()}\n\n\n{inspect.getsource(table).rstrip()}\n\n",
            f"with open({setting.table.name!r}, encoding='utf-8') as file:",
            f"    x, y = table(file, {setting.target!r}, {setting.points}, {rng})",
            *scaled,
            split,
        ]
    )


def source_code(data: str) -> str:
    """Return the functions that make the points or, with names, that make them and that write new ones."""
    functions = [DATA[data], write] if data == names.__name__ else [DATA[data]]
    return "\n\n\n".join([inspect.getsource(function).rstrip() for function in functions])


def features_code(setting: Setting) -> str:
    """Return the lines that compute x of points of the plane."""
    return f"a, b = points.T\nx = np.stack([{', '.join([FEATURES[name] for name in setting.features])}], axis=1)"


def compute_features(setting: Setting, points: np.ndarray) -> np.ndarray:
    """Return the net's input for points of the plane, (n, 2)."""
    if not setting.has_features:
        return points
    names: dict[str, Any] = {"np": np, "points": points}
    exec(features_code(setting), names)
    return names["x"]


def _scaling_code(name: str, k: int) -> str:
    """Return the line that gives the training rows mean 0 and standard deviation 1."""
    return f"{name} = ({name} - {name}[{k}:].mean(axis=0)) / np.maximum({name}[{k}:].std(axis=0), 1e-9)"


def model_code(setting: Setting) -> str:
    """Return the lines that make the model."""
    lines, size = [f"model = cl.Model(seed={setting.seed})"], setting.inputs
    for i, units in enumerate(setting.layers):
        kind = "Linear" if not setting.is_text else "RNN" if i > 0 else "Embedding"
        lines.append(f"model.add(cl.{kind}({size}, {units}{', sequences=True' * (kind == 'RNN')}))")
        if setting.norm != "none":
            lines.append(f"model.add(cl.{setting.norm}({units}))")
        if setting.activation != "none" and not setting.is_text:
            lines.append(f"model.add(cl.{setting.activation}())")
        if setting.dropout > 0:
            lines.append(f"model.add(cl.Dropout({setting.dropout!r}))")
        size = units
    kind = "Linear" if setting.layers or not setting.is_text else "Embedding"
    lines.append(f"model.add(cl.{kind}({size}, {setting.outputs}))")
    return "\n".join(lines)


def loss_code(setting: Setting) -> str:
    """Return the expression that makes the loss."""
    return f"cl.{setting.loss}({'ignore=-1' if setting.is_text else ''})"


def optimizer_code(setting: Setting) -> str:
    """Return the line that makes the optimizer."""
    kind, rate = setting.optimizer, f"{setting.rate!r}"
    if setting.schedule == "cosine":
        rate = f"cl.schedules.cosine({setting.rate!r}, {setting.epochs * setting.steps})"
    options = [f"lr={rate}", *["momentum=0.9"] * (kind == "momentum")]
    options += [f"weight_decay={setting.decay!r}"] * (setting.decay > 0 or kind == "AdamW")  # AdamW's default is 0.01
    return f"optimizer = cl.{'SGD' if kind == 'momentum' else kind}(model.parameters(), {', '.join(options)})"


def setup_code(setting: Setting) -> str:
    """Return the lines that import modules, and make data, model and optimizer."""
    model_and_optimizer = f"{model_code(setting)}\n{optimizer_code(setting)}"
    return f"{imports_code(setting)}\n\n\n{data_code(setting)}\n\n{model_and_optimizer}"


def program_code(setting: Setting, epochs: int | str, has_edits: bool = False) -> str:
    """Return the entire program, which trains for this many epochs. It says so if it leaves out edits of weights."""
    fit = f"""history = model.fit(
    x,
    y,
    loss={loss_code(setting)},
    optimizer=optimizer,
    epochs={epochs},
    batch_size={setting.batch_size},
    validation_data=held_out,
    metrics=["{setting.metric}"],
)
print(history["loss"][-1], history["val_loss"][-1])"""
    written = f"\nprint(*write(model, np.random.default_rng({setting.seed})))" if setting.is_text else ""
    comment = "# This program leaves out the weights that were set by hand.\n" * has_edits
    return f"{comment}{setup_code(setting)}\n\n{fit}{written}\n"


def build_objects(setting: Setting) -> dict[str, Any]:
    """Run the lines that make data, model, optimizer and loss. Return them by name."""
    objects: dict[str, Any] = {}
    if setting.table is not None:  # its file is not on this machine, or elsewhere
        objects["open"] = lambda *_, **__: io.StringIO(setting.table.text)
    exec(f"{setup_code(setting)}\nloss = {loss_code(setting)}", objects)
    if setting.activation == "none":
        accept_merged_layers(objects["model"])
    return objects
