"""The packages to install for features that need them: the extras of pyproject.toml."""

EXTRAS = {
    "plot": "matplotlib",
    "data": "pooch",
    "images": "pillow",
    "sklearn": "scikit-learn scipy",
    "scipy": "scipy",
    "onnx": "onnx",
    "mpi": "mpi4py",
    "pytorch": "torch",
    "tensorboard": "tensorboardX",
    "web": "starlette uvicorn websockets",
}


def how_to_install(extra: str) -> str:
    """Return the command that installs an extra's packages.

    It names the packages, not `caffelite[extra]`: then it also works for a copy that is on no package index.
    """
    return f"pip install {EXTRAS[extra]}"
