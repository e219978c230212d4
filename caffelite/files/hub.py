"""Models on the Hugging Face Hub: `Model.push_to_hub`, and the addresses hf://owner/name that `load` takes."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import Any

from caffelite._support.extras import install_command

FILE = "model.safetensors"
CARD = """---
library_name: caffelite
---

A model of [caffelite](https://pypi.org/project/caffelite/):

```python
import caffelite as cl

model = cl.load("hf://{repo_id}")
```
"""


def import_hub() -> Any:
    try:
        import huggingface_hub
    except ImportError as error:
        raise ImportError(f"the Hub needs huggingface_hub: {install_command('hub')}") from error
    return huggingface_hub


def push(model: Any, repo_id: str, commit_message: str, private: bool | None, token: str | bool | None) -> str:
    """Return the address of the repository; see `Model.push_to_hub`."""
    hub = import_hub()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, FILE)
        model.save(path)
        api = hub.HfApi(token=token, library_name="caffelite")
        url = api.create_repo(repo_id, private=private, exist_ok=True)
        additions = [hub.CommitOperationAdd(FILE, path)]
        if not api.file_exists(url.repo_id, "README.md"):
            card = CARD.format(repo_id=url.repo_id).encode()
            additions.append(hub.CommitOperationAdd("README.md", card))
        api.create_commit(url.repo_id, additions, commit_message=commit_message)
    return str(url)


def local_path(path: str | os.PathLike[str]) -> str | os.PathLike[str]:
    """Return the path of a file. A file on the Hub, hf://owner/name@revision/file, is downloaded into its cache."""
    if not (isinstance(path, str) and path.startswith("hf://")):
        return path
    if (parts := re.fullmatch(r"hf://([^/@]+/[^/@]+)(?:@([^/]+))?(?:/(.+))?", path)) is None:
        raise ValueError(f"expected hf://owner/name, or hf://owner/name@revision/file, got {path}")
    repo_id, revision, name = parts.groups()
    return import_hub().hf_hub_download(repo_id, name or FILE, revision=revision, library_name="caffelite")
