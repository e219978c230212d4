"""A convolutional autoencoder: it compresses digits of 64 pixels to 8 numbers, and draws them again from these.

Each convolution of the encoder, with stride 2, halves the image. Each transposed convolution of the decoder doubles it.
They learn from the mean squared error of the drawn pixels, without labels. For comparison, 8 principal components (K.
Pearson, 1901), the best of all linear encoders, do the same with the same images.

python autoencoder.py                # trains: a few seconds
python autoencoder.py PICTURE.png    # draws images and what both make of them, too; needs matplotlib
"""

import sys

import numpy as np

import caffelite as cl

CODE = 8  # numbers for an image
EPOCHS, BATCH = 100, 64


class Autoencoder(cl.Model):
    """Images (n, 1, 8, 8) to images, by way of codes (n, CODE)."""

    def __init__(self, seed=None):
        super().__init__(seed=seed)
        self.encode = cl.Model(
            [
                cl.Conv2d(1, 16, 3, stride=2, padding=1),  # (n, 16, 4, 4)
                cl.ReLU(),
                cl.Conv2d(16, 32, 3, stride=2, padding=1),  # (n, 32, 2, 2)
                cl.ReLU(),
                cl.Flatten(),
                cl.Linear(128, CODE),
            ]
        )
        self.decode = cl.Model(
            [
                cl.Linear(CODE, 128),
                cl.ReLU(),
                cl.Reshape((32, 2, 2)),
                cl.ConvTranspose2d(32, 16, 4, stride=2, padding=1),  # (n, 16, 4, 4)
                cl.ReLU(),
                cl.ConvTranspose2d(16, 1, 4, stride=2, padding=1),  # (n, 1, 8, 8)
            ]
        )

    def call(self, x):
        return self.decode(self.encode(x))


def principal_components(x, x_test):
    """x_test from its coordinates along the CODE directions in which x varies most."""
    rows, mean = x.reshape(len(x), -1), x.reshape(len(x), -1).mean(axis=0)
    directions = np.linalg.svd(rows - mean, full_matrices=False)[2][:CODE]
    codes = (x_test.reshape(len(x_test), -1) - mean) @ directions.T
    return (codes @ directions + mean).reshape(x_test.shape)


def draw(path, rows):
    """Rows of images (n, 8, 8) by their names, one below the other."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 0.75 * len(rows)), dpi=160, layout="constrained")
    for axes, (name, images) in zip(figure.subplots(len(rows), 1), rows.items(), strict=True):
        spaced = np.pad(images, ((0, 0), (0, 0), (1, 1)))
        axes.imshow(np.concatenate(spaced, axis=1), cmap="gray_r", vmin=0, vmax=1)
        axes.set_title(name, loc="left", fontsize=11)
        axes.set_axis_off()
    figure.savefig(path)


(x, _), (x_test, digit) = cl.datasets.digits()
x, x_test = x[:, None], x_test[:, None]

model = Autoencoder(seed=0)
print(model.summary(x.shape[1:]))
rate = cl.schedules.cosine(5e-3, steps=EPOCHS * -(-len(x) // BATCH))
optimizer = cl.Adam(model.parameters(), lr=rate)
loss = cl.MSELoss()
history = model.fit(
    x, x, loss=loss, optimizer=optimizer, epochs=EPOCHS, batch_size=BATCH, validation_data=(x_test, x_test), verbose=0
)
for epoch in (1, 10, EPOCHS):
    training, held_out = history["loss"][epoch - 1], history["val_loss"][epoch - 1]
    print(f"epoch {epoch:3}: mean squared error {training:.4f}, on images never seen {held_out:.4f}")

drawn, linear = model.predict(x_test), principal_components(x, x_test)
error, error_of_linear = np.mean((drawn - x_test) ** 2), np.mean((linear - x_test) ** 2)
print(f"{CODE} numbers for 64 pixels: error {error:.4f}, of principal components {error_of_linear:.4f}")

if len(sys.argv) > 1:
    shown = np.concatenate([np.flatnonzero(digit == k)[:2] for k in range(10)])
    rows = {"images never seen": x_test, f"drawn from {CODE} numbers": drawn, f"{CODE} principal components": linear}
    draw(sys.argv[1], {name: images[shown, 0] for name, images in rows.items()})
