"""The packages to install for features that need them: the extras of pyproject.toml."""

import sys
from contextlib import suppress
from pathlib import Path

EXTRAS = {
    "plot": "matplotlib",
    "data": "pooch",
    "frames": "narwhals",
    "images": "pillow",
    "sklearn": "scikit-learn scipy",
    "scipy": "scipy",
    "onnx": "onnx",
    "mpi": "mpi4py",
    "pytorch": "torch",
    "tensorboard": "tensorboardX",
    "mlflow": "mlflow",
    "wandb": "wandb",
    "hub": "huggingface_hub",
    "web": "starlette uvicorn websockets",
    "notebook": "anywidget starlette uvicorn websockets",
}


def install_command(extra: str) -> str:
    """Return the command that installs an extra's packages.

    It names the packages, not `caffelite[extra]`: then it also works for a copy that is on no package index.
    """
    return pip_command(EXTRAS[extra])


def pip_command(packages: str) -> str:
    """Return the command that installs packages for this Python, such as `.venv/bin/python -m pip install onnx`.

    `pip` alone may belong to another Python. The path is relative if this Python is in the current folder.
    """
    python = Path(sys.executable or "python3")  # a program that embeds Python may not know where it is
    with suppress(ValueError, OSError):  # not in the current folder, or somebody has deleted that folder
        python = python.relative_to(Path.cwd())
    path = f'"{python}"' if " " in str(python) else str(python)
    return f"{path} -m pip install {packages}"
