"""A net that reads handwritten digits, written as C, compiled, and called without caffelite.

python digits_in_c.py                 # in a folder that is removed afterwards
python digits_in_c.py digits.c        # keeps the file: a comment in it says how to use it elsewhere
"""

import ctypes
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import caffelite as cl
from caffelite import c

(x, y), (x_test, y_test) = cl.datasets.digits()
x, x_test = x[:, None], x_test[:, None]  # a convolution takes (n, channels, height, width), here one channel

model = cl.Model(seed=0)
model.add(cl.Conv2d(1, 16, 3, padding="same")).add(cl.BatchNorm(16)).add(cl.ReLU()).add(cl.MaxPool2d(2))
model.add(cl.Flatten()).add(cl.Dropout(0.2)).add(cl.Linear(256, 10)).add(cl.Softmax())
scores = cl.Model(model.functions[:-1])  # the same layers but for the last: the loss takes scores
data = cl.DataGenerator(x, y, transform=cl.augment.shift(1), seed=0)
scores.fit(data, loss=cl.SoftmaxLoss(), optimizer=cl.Adam(scores.parameters(), lr=3e-3), epochs=15)

with tempfile.TemporaryDirectory() as folder:
    path = Path(sys.argv[1] if len(sys.argv) > 1 else f"{folder}/digits.c")
    c.export(model, path, input_shape=(1, 8, 8))
    text = path.read_text()
    print(text[: text.index("*/") + 2])
    compiler = shutil.which("cc")
    if compiler is None:
        sys.exit(print("There is no C compiler here to go on with."))

    library = Path(folder, "digits.so")
    subprocess.run([compiler, "-std=c99", "-O3", "-fPIC", "-shared", path, "-o", library, "-lm"], check=True)
    predict = ctypes.CDLL(str(library)).predict
    numbers = np.ctypeslib.ndpointer(np.float32, flags="C_CONTIGUOUS")
    predict.argtypes, predict.restype = [numbers, numbers], None

    probabilities = np.empty((len(x_test), 10), np.float32)
    for image, row in zip(x_test, probabilities, strict=True):
        predict(image, row)

print(f"test images: accuracy {(probabilities.argmax(axis=1) == y_test).mean():.4f} in C")
print(f"largest difference from model.predict {abs(probabilities - model.predict(x_test)).max():.1e}")
