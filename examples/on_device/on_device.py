"""Write a net that reads digits as C, and the digits of a writer whom it does not know: build/net.c, build/digits.h.

`make` in this folder runs this program. It compiles both files for a microcontroller, and lets the net learn in QEMU.
"""

from pathlib import Path

import numpy as np

import caffelite as cl
import caffelite.c

folder = Path("build")
folder.mkdir(exist_ok=True)

(images, digits), (test_images, test_digits) = cl.datasets.digits()
model = cl.Model(seed=0)
model.add(cl.Conv2d(1, 16, 3, padding=1)).add(cl.ReLU()).add(cl.MaxPool2d(2)).add(cl.Flatten())
model.add(cl.Linear(16 * 4 * 4, 10))
data = cl.DataGenerator(images[:, None], digits, transform=cl.augment.shift(1), seed=0)
model.fit(data, loss=cl.SoftmaxLoss(), optimizer=cl.Adam(model.parameters(), lr=3e-3), epochs=20, verbose=0)

# The last layer alone learns on the device, one image at a time.
caffelite.c.export_training(
    model,
    folder / "net.c",
    loss=cl.SoftmaxLoss(),
    optimizer=cl.SGD(model.parameters(), lr=0.01),
    batch_size=1,
    input_shape=(1, 8, 8),
    trainable=model.functions[-1:],
)


def slant(image):
    """Move the rows of an image by up to 1.4 pixels, the upper half to the right: a stand-in for another writer."""
    columns = np.arange(8)
    shifts = np.linspace(1.4, -1.4, 8)
    return [np.interp(columns - shift, columns, row, 0, 0) for row, shift in zip(image, shifts, strict=True)]


# A real device would have the images from a sensor, in bytes as here.
pixels = np.round(255 * np.array([slant(image) for image in test_images])).astype(np.uint8)
rows = ",\n".join([f"    {{{', '.join(map(str, image.ravel()))}}}" for image in pixels])
labels = ", ".join(map(str, test_digits))
(folder / "digits.h").write_text(
    f"enum {{ IMAGES = {len(pixels)} }};\n"
    f"static const unsigned char images[IMAGES][64] = {{\n{rows}}};\n"
    f"static const unsigned char digits[IMAGES] = {{{labels}}};\n"
)
right = (model.predict(test_images[:, None]).argmax(axis=1) == test_digits).sum()
print(f"digits as they were: {right} of {len(test_digits)} right")
