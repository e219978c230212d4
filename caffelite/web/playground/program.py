"""The program that does what the playground does: to read, to copy, and to run."""

from __future__ import annotations

import inspect
from typing import Any

from caffelite.web.playground.data import DATA
from caffelite.web.playground.setting import Setting

IMPORTS = "import numpy as np\n\nimport caffelite as cl"


def data_of(setting: Setting) -> str:
    """The lines that make the points, the first of them held out."""
    source = inspect.getsource(DATA[setting.data]).rstrip()
    k = setting.held_out
    make = f"x, y = {setting.data}({setting.points}, {setting.noise!r}, np.random.default_rng({setting.seed}))"
    return f"{source}\n\n\n{make}\nheld_out = x[:{k}], y[:{k}]\nx, y = x[{k}:], y[{k}:]"


def model_of(setting: Setting) -> str:
    """The lines that make the model."""
    lines, size = [f"model = cl.Model(seed={setting.seed})"], 2
    for units in setting.layers:
        lines.append(f"model.add(cl.Linear({size}, {units}))")
        if setting.norm != "none":
            lines.append(f"model.add(cl.{setting.norm}({units}))")
        if setting.activation != "none":
            lines.append(f"model.add(cl.{setting.activation}())")
        if setting.dropout > 0:
            lines.append(f"model.add(cl.Dropout({setting.dropout!r}))")
        size = units
    lines.append(f"model.add(cl.Linear({size}, {setting.outputs}))")
    return "\n".join(lines)


def optimizer_of(setting: Setting) -> str:
    """The line that makes the optimizer."""
    kind, rate = setting.optimizer, f"{setting.rate!r}"
    if setting.schedule == "cosine":
        rate = f"cl.schedules.cosine({setting.rate!r}, {setting.epochs * setting.steps})"
    options = [f"lr={rate}", *["momentum=0.9"] * (kind == "momentum")]
    options += [f"weight_decay={setting.decay!r}"] * (setting.decay > 0)
    return f"optimizer = cl.{'SGD' if kind == 'momentum' else kind}(model.parameters(), {', '.join(options)})"


def program_of(setting: Setting, epochs: int | str) -> str:
    """The whole program, which trains for so many epochs."""
    loss, metric = ("SoftmaxLoss", "accuracy") if setting.is_classes else ("MSELoss", "mae")
    fit = f"""history = model.fit(
    x,
    y,
    loss=cl.{loss}(),
    optimizer=optimizer,
    epochs={epochs},
    batch_size={setting.batch_size},
    validation_data=held_out,
    metrics=["{metric}"],
)
print(history["loss"][-1], history["val_loss"][-1])"""
    return f"{IMPORTS}\n\n\n{data_of(setting)}\n\n{model_of(setting)}\n{optimizer_of(setting)}\n\n{fit}\n"


def made(setting: Setting) -> dict[str, Any]:
    """Run the lines that make data, model and optimizer. Return them by name."""
    names: dict[str, Any] = {}
    exec(f"{IMPORTS}\n\n\n{data_of(setting)}\n\n{model_of(setting)}\n{optimizer_of(setting)}\n", names)
    return names
