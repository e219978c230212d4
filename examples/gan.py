"""Two nets against each other, with two optimizers: one makes points of a ring, the other tells them from real ones.

`capture` records both steps. `python gan.py PICTURE.png` draws points. I. Goodfellow and others, NeurIPS 2014.
"""

import sys

import numpy as np

import caffelite as cl

BATCH = 256
rng = np.random.default_rng(0)
maker = cl.MLP(4, [64, 64, 2], seed=0)
critic = cl.MLP(2, [64, 64, 1], activation=cl.LeakyReLU, seed=1)
of_maker = cl.Adam(maker.parameters(), lr=5e-4, betas=(0.5, 0.999))
of_critic = cl.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.999))
loss = cl.SigmoidLoss()
real, made = np.ones((BATCH, 1)), np.zeros((BATCH, 1))


def ring(n):
    """Points (n, 2) at a distance of about 1 from the origin."""
    angles, radii = rng.uniform(0, 2 * np.pi, n), rng.normal(1, 0.05, n)
    return (radii * [np.cos(angles), np.sin(angles)]).T.astype(np.float32)


def noise(n):
    return rng.standard_normal((n, 4)).astype(np.float32)


def learn_to_tell(points, z):
    with cl.no_grad():
        others = maker(z)
    of_critic.zero_grad()
    (loss(critic(points), real) + loss(critic(others), made)).backward()
    of_critic.step()


def learn_to_make(z):
    of_maker.zero_grad()
    loss(critic(maker(z)), real).backward()  # the critic gets a gradient, too, and does not use it
    of_maker.step()


telling, making = cl.capture(learn_to_tell, ring(BATCH), noise(BATCH)), cl.capture(learn_to_make, noise(BATCH))
for step in range(1, 3001):
    telling(ring(BATCH), noise(BATCH))
    making(noise(BATCH))
    if step in (100, 1000, 3000):
        points = maker.predict(noise(2000))
        radii, counts = np.linalg.norm(points, axis=1), np.histogram(np.arctan2(*points.T), bins=12)[0]
        print(f"after {step} steps: radius {radii.mean():.3f}, least points in a twelfth of it {counts.min()} of 2000")

if len(sys.argv) > 1:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 5), dpi=160, layout="constrained")
    figure.subplots().plot(*ring(2000).T, ".", *points.T, ".", markersize=3)  # real, made
    figure.savefig(sys.argv[1])
