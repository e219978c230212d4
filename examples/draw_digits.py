"""Draw a digit on a page, and a net reads it: caffelite behind a page of Gradio.

The net is trained on the 1,437 bundled images of 8 × 8 pixels. A drawing becomes such an image: it is cropped, centred,
and each pixel is the share of ink in its square. In the training, images are moved by up to a pixel. The images are of
few writers, so the net may take a 7 without a bar for another digit.

python draw_digits.py            # trains the net, seconds
python draw_digits.py --page     # also opens the page: pip install gradio
"""

import sys

import numpy as np

import caffelite as cl

SIZE = 8


def shrink(ink):
    """Ink (height, width), 0 to 1, as the image (8, 8) of the digit in it."""
    rows, columns = [np.flatnonzero(ink.max(axis=axis) > 0.1) for axis in (1, 0)]
    if len(rows) == 0:
        return np.zeros((SIZE, SIZE), np.float32)
    digit = ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    side = max(digit.shape)
    square = np.zeros((side, side))
    top, left = [(side - n) // 2 for n in digit.shape]
    square[top : top + digit.shape[0], left : left + digit.shape[1]] = digit
    places = (np.arange(8 * SIZE) + 0.5) * side // (8 * SIZE)  # 8 × 8 points in each square
    sampled = square[np.ix_(places.astype(int), places.astype(int))]
    return sampled.reshape(SIZE, 8, SIZE, 8).mean(axis=(1, 3)).astype(np.float32)


def read(drawing):
    """Return the probability of each digit for what Gradio's sketchpad has, an image (height, width, 4)."""
    rgba = np.asarray(drawing["composite"]) / 255
    ink = rgba[..., 3] * (1 - rgba[..., :3].mean(axis=2))  # the page may be white or transparent
    p = loss.link(model.predict(shrink(ink)[None, None]))[0]
    return {str(digit): float(p[digit]) for digit in range(10)}


(x, y), (x_test, y_test) = cl.datasets.digits()
x, x_test = [images[:, None] for images in (x, x_test)]
model = cl.Model(seed=0)
model.add(cl.Conv2d(1, 16, 3, padding=1)).add(cl.ReLU()).add(cl.Conv2d(16, 32, 3, padding=1)).add(cl.ReLU())
model.add(cl.MaxPool2d(2)).add(cl.Flatten()).add(cl.Dropout(0.3)).add(cl.Linear(512, 10))
batches = cl.DataGenerator(x, y, batch_size=64, transform=cl.augment.shift(1), seed=0)
loss, rate = cl.SoftmaxLoss(), cl.schedules.cosine(2e-3, steps=30 * len(batches))
model.fit(batches, loss=loss, optimizer=cl.Adam(model.parameters(), lr=rate), epochs=30, verbose=0)
print(f"test images: accuracy {model.evaluate(x_test, y_test, loss=loss, metrics=['accuracy'])['accuracy']:.4f}")

if "--page" in sys.argv:
    import gradio

    brush = gradio.Brush(default_size=80, colors=["#000000"])
    pad = gradio.Sketchpad(label="draw a digit", image_mode="RGBA", type="numpy", brush=brush)
    gradio.Interface(read, pad, gradio.Label(label="the net reads"), flagging_mode="never").launch()
