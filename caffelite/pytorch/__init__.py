"""Models of PyTorch's modules, modules of Models, and PyTorch's weights in Models.

    import caffelite.pytorch

    model = caffelite.pytorch.from_torch(module)
    module = caffelite.pytorch.to_torch(model)
    caffelite.pytorch.load_state_dict(model, torch.load("net.pt"))

It needs the `torch` package: `pip install torch`.
"""

from caffelite._support.extras import install_command

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError(f"caffelite.pytorch needs the torch package: {install_command('pytorch')}") from error

from caffelite.pytorch.converting import from_torch, to_torch
from caffelite.pytorch.state import load_state_dict

__all__ = ["from_torch", "load_state_dict", "to_torch"]
