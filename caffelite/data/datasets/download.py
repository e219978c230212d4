"""Downloads of data files from where they are published, through pooch. Nothing else here needs a network."""

from __future__ import annotations

import os
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import NamedTuple

from caffelite._support.extras import install_command


class Download(NamedTuple):
    """The files' address, their SHA-256 by name, and the folder inside the user's folder to put them in."""

    url: str
    sha256: dict[str, str]
    folder: str = ""


# SHA-256 as TensorFlow Datasets lists them: tensorflow_datasets/url_checksums/{mnist,fashion_mnist,cifar10}.txt
DOWNLOADS = {
    "mnist": Download(
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
        {
            "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        },
    ),
    "fashion_mnist": Download(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        {
            "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        },
    ),
    "cifar10": Download(
        "https://www.cs.toronto.edu/~kriz/",
        {"cifar-10-binary.tar.gz": "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"},
        "cifar-10-batches-bin",
    ),
}


def fetch(dataset: str, folder: Path, names: list[str]) -> None:
    """Fetch these files, as gzip or from an archive. Each is moved into the folder once it is complete.

    Raise ImportError without pooch, ConnectionError if a file can't be fetched, and ValueError if its SHA-256 is wrong.
    """
    try:
        import pooch
        from requests import RequestException
    except ImportError as error:
        raise ImportError(f"download=True fetches files through pooch: {install_command('data')}") from error
    download = DOWNLOADS[dataset]
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="incomplete-", dir=folder) as incomplete:
        for name, sha256 in download.sha256.items():
            is_archive = name.endswith(".tar.gz")
            if not is_archive and name.removesuffix(".gz") not in names:
                continue
            url = download.url + name
            try:
                path = Path(pooch.retrieve(url, f"sha256:{sha256}", fname=name, path=incomplete))
            except RequestException as error:
                what = "its content" if is_archive else "it"
                raise ConnectionError(
                    f"{url} could not be fetched: try again, or put {what} into {folder} by other means. {error}"
                ) from error
            except ValueError as error:
                raise ValueError(f"{url} has unexpected content, so the file was not kept: {error}") from error
            for file in _unpack(path, names) if is_archive else [path]:
                (folder / download.folder).mkdir(exist_ok=True)
                os.replace(file, folder / download.folder / file.name)


def _unpack(archive: Path, names: list[str]) -> list[Path]:
    """Extract the files with these names from any folder in an archive. Return their paths."""
    files = []
    with tarfile.open(archive) as tar:
        for member in tar:
            packed = tar.extractfile(member) if Path(member.name).name in names else None
            if packed is not None:
                files.append(archive.with_name(Path(member.name).name))
                with packed, open(files[-1], "wb") as file:
                    shutil.copyfileobj(packed, file)
    return files
