"""A variational autoencoder: digits from 8 random numbers.

The encoder gives a mean and a log variance for each code. The decoder draws the image from mean + deviation · noise.
The loss is the squared error of the drawing and the divergence of the codes from a normal distribution. So the decoder
also draws digits from random codes. The noise of each batch comes in as a second input. D. Kingma and M. Welling,
"Auto-encoding variational Bayes", ICLR 2014.

`python vae.py PICTURE.png` draws digits that nobody wrote, too. It needs matplotlib.
"""

import sys

import numpy as np

import caffelite as cl

CODE = 8


class VAE(cl.Model):
    def __init__(self, seed=None):
        super().__init__(seed=seed)
        self.encode, self.decode = cl.MLP(64, [128, 2 * CODE]), cl.MLP(CODE, [128, 64])

    def call(self, x, noise):
        codes = self.encode(x)
        mean, log_variance = codes[:, :CODE], codes[:, CODE:]
        return self.decode(mean + (log_variance / 2).exp() * noise), mean, log_variance


def loss(outputs, x):
    drawn, mean, log_variance = outputs
    error = ((drawn - x) ** 2).sum(axis=1).mean() / 0.2
    return error + (mean**2 + log_variance.exp() - log_variance - 1).sum(axis=1).mean() / 2


rng = np.random.default_rng(0)
(x, y), _ = cl.datasets.digits()
x = x.reshape(-1, 64)
noise = np.zeros((len(x), CODE))
batches = cl.DataGenerator((x, noise), x, seed=0, transform=lambda x, y: ((x[0], rng.standard_normal(x[1].shape)), y))
model = VAE(seed=0)
model.fit(batches, loss=loss, optimizer=cl.Adam(model.parameters(), lr=2e-3), epochs=30, verbose=0)

judge = cl.MLP(64, [128, 10], seed=0)  # a net that reads digits says how sure it is of the drawn ones
judge.fit(x, y, loss=cl.SoftmaxLoss(), optimizer=cl.Adam(judge.parameters()), epochs=30, verbose=0)
drawn = model.decode.predict(rng.standard_normal((1000, CODE)))
others = x.mean(axis=0) + x.std(axis=0) * rng.standard_normal((1000, 64))
for name, images in (("drawn digits", drawn), ("noise like the images", others)):
    sure = (cl.SoftmaxLoss().link(judge.predict(images)).max(axis=1) > 0.9).mean()
    print(f"{name}: surely read {sure:.3f}, distance from the nearest real image", end=" ")
    print(f"{np.linalg.norm(images[:200, None] - x, axis=2).min(axis=1).mean():.3f}")

if len(sys.argv) > 1:
    from matplotlib.image import imsave

    apart = np.pad(drawn[:100].reshape(10, 10, 8, 8), ((0, 0), (0, 0), (1, 1), (1, 1)))
    grid = apart.swapaxes(1, 2).reshape(100, 100)
    imsave(sys.argv[1], grid.repeat(5, axis=0).repeat(5, axis=1), cmap="gray_r", vmin=0, vmax=1)
