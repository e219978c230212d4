"""Two nets learn to match images and captions, such as "three seven". They then read captions that were never seen.

An image shows two digits side by side, so there are 100 captions. One net makes a vector of an image, the other makes a
vector of a caption. In a batch, each image has to be nearer to its own caption than to all other captions, and each
caption nearer to its own image. Twenty captions are left out of the training: the nets know their words only from other
captions. The method is from A. Radford et al., "Learning transferable visual models from natural language supervision"
(CLIP), ICML 2021.

python image_captions.py                # trains: a few seconds
python image_captions.py PICTURE.png    # draws images and the captions that fit best, too; needs matplotlib
"""

import sys

import numpy as np

import caffelite as cl

WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
BATCH, BATCHES, EPOCHS = 40, 300, 6


class ImagesAndCaptions(cl.Model):
    """Images (n, 8, 16) and captions (m, 2), two words each, to how well they fit, (n, m): scores for a softmax."""

    takes_indices = (False, True)

    def __init__(self, size=32, seed=None):
        super().__init__(seed=seed)
        self.image = cl.Model([cl.Flatten(), cl.MLP(128, [256, size])])
        self.caption = cl.Model([cl.Embedding(len(WORDS), 16), cl.Flatten(), cl.Linear(32, size)])

    def call(self, images, captions):
        return 10.0 * (unit(self.image(images)) @ unit(self.caption(captions)).T)


def unit(x):
    """Return the rows, each of the length 1."""
    return x / ((x**2).sum(axis=1, keepdims=True) + 1e-8).sqrt()


def fit_both_ways(scores, own):
    """Return the loss of the captions for each image, and of the images for each caption."""
    return loss(scores, own) + loss(scores.T, own)


def join(images, digits, captions):
    """Return an image for each caption (n, 2): two images of its digits, side by side."""
    of_digit = [np.flatnonzero(digits == digit) for digit in range(10)]
    rows = np.array([[rng.choice(of_digit[digit]) for digit in caption] for caption in captions])
    return np.concatenate([images[rows[:, 0]], images[rows[:, 1]]], axis=2)


rng = np.random.default_rng(0)
train, test = cl.datasets.digits()
captions = rng.permutation(np.stack([np.arange(100) // 10, np.arange(100) % 10], axis=1))
new, known = captions[:20], captions[20:]
batches = []
for _ in range(BATCHES):
    chosen = rng.choice(known, BATCH, replace=False)
    batches.append(((join(*train, chosen), chosen), np.arange(BATCH)))  # image i belongs to caption i

loss = cl.SoftmaxLoss()
model = ImagesAndCaptions(seed=0)
history = model.fit(
    batches,
    loss=fit_both_ways,
    optimizer=cl.Adam(model.parameters(), lr=cl.schedules.cosine(3e-3, steps=EPOCHS * BATCHES)),
    epochs=EPOCHS,
    verbose=0,
)
print(f"loss {history['loss'][0]:.3f} in epoch 1, {history['loss'][-1]:.3f} in epoch {EPOCHS}")
for name, shown in (("known", np.repeat(known, 10, axis=0)), ("new", np.repeat(new, 10, axis=0))):
    images = join(*test, shown)
    with cl.inference():
        scores = model(images, captions).numpy()
    found = captions[scores.argmax(axis=1)]
    print(f"{name} captions: right for {(found == shown).all(axis=1).mean():.3f} of the test images, one of 100")

if len(sys.argv) > 1:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), dpi=160, layout="constrained")
    for axes, image, (left, right) in zip(figure.subplots(3, 4).ravel(), images[::17], found[::17], strict=False):
        axes.imshow(image, cmap="gray_r")
        axes.set_title(f"{WORDS[left]} {WORDS[right]}", fontsize=9)
        axes.axis("off")
    figure.savefig(sys.argv[1])
