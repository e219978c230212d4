"""Recognize the package of a docstring. Its words, hashed into 20,000 columns, are a sparse matrix for a net.

The texts are the docstrings of Python's own library, a sentence each. The net finds the package of a sentence. The
column of a word is its hash, so there is no vocabulary to keep ("feature hashing", K. Weinberger et al., ICML 2009). Of
20,000 columns a sentence uses some twenty. An array of the rows would take hundreds of times the memory, and each step
would take the time to multiply zeros.

python text.py    # a few seconds. Needs SciPy. Compares with MLPClassifier if scikit-learn is installed.
"""

import ast
import re
import sysconfig
import time
import zlib
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import numpy as np
import scipy.sparse as sp

import caffelite as cl

PACKAGES = ["asyncio", "concurrent", "ctypes", "email", "http", "json", "logging", "unittest", "urllib", "xml"]
FEATURES = 20_000


def sentences(package):
    """All sentences of five words and more in the docstrings of a package, each once."""
    found = {}
    for path in sorted(Path(sysconfig.get_path("stdlib"), package).rglob("*.py")):
        if "test" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8", errors="replace"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                for sentence in re.split(r"\n\s*\n|\.\s", ast.get_docstring(node) or ""):
                    if len(sentence.split()) >= 5:
                        found[sentence] = None
    return list(found)


def hash_features(texts):
    """Texts as rows (n, FEATURES) of a CSR matrix: how often each word and each pair of neighbours comes, normed."""
    words, ends = [], [0]
    for text in texts:
        own = re.findall(r"\w+", text.lower())
        words += own + [f"{first} {second}" for first, second in pairwise(own)]
        ends.append(len(words))
    columns = [zlib.crc32(word.encode()) % FEATURES for word in words]
    rows = sp.csr_array((np.ones(len(words), np.float32), columns, ends), shape=(len(texts), FEATURES))
    rows.sum_duplicates()
    rows.data /= np.repeat(np.sqrt(rows.power(2).sum(axis=1)), np.diff(rows.indptr)).astype(np.float32)
    return rows


of_package = [sentences(package) for package in PACKAGES]
texts, y = [text for own in of_package for text in own], np.repeat(np.arange(len(PACKAGES)), [*map(len, of_package)])
order = np.random.default_rng(0).permutation(len(texts))
texts, y = [texts[i] for i in order], y[order]
start = time.perf_counter()
x, test = hash_features(texts), len(texts) // 5
sparse, dense = (x.data.nbytes + x.indices.nbytes + x.indptr.nbytes) / 1e6, 4e-6 * x.shape[0] * FEATURES
print(f"{len(texts)} sentences of {len(PACKAGES)} packages, hashed in {time.perf_counter() - start:.1f} s")
print(f"{x.nnz / x.shape[0]:.0f} numbers a row: {sparse:.1f} MB, as an array {dense:.0f} MB")

model = cl.MLP(FEATURES, [64, len(PACKAGES)], seed=0)
loss, optimizer = cl.SoftmaxLoss(), cl.Adam(model.parameters(), lr=3e-3)
start = time.perf_counter()
model.fit(x[test:], y[test:], loss=loss, optimizer=optimizer, epochs=5, batch_size=128, verbose=0)
seconds = time.perf_counter() - start
accuracy = model.evaluate(x[:test], y[:test], loss=loss, metrics=["accuracy"])["accuracy"]
print(f"caffelite: {seconds:.1f} s, test sentences: accuracy {accuracy:.3f}")

if find_spec("sklearn"):
    import warnings

    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPClassifier

    warnings.simplefilter("ignore", ConvergenceWarning)  # five epochs are what is compared
    theirs = MLPClassifier(
        (64,), alpha=0.0, batch_size=128, learning_rate_init=3e-3, max_iter=5, tol=0.0, random_state=0
    )
    start = time.perf_counter()
    theirs.fit(x[test:], y[test:])
    seconds = time.perf_counter() - start
    print(f"scikit-learn: {seconds:.1f} s, test sentences: accuracy {theirs.score(x[:test], y[:test]):.3f}")

for text in ["Return the parsed header of the message.", "Schedule a callback on the event loop."]:
    probability = loss.link(model.predict(hash_features([text])))[0]
    print(f"{probability.max():.0%} {PACKAGES[probability.argmax()]}: {text}")
