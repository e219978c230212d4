"""A Wasserstein GAN with gradient penalty: two nets against each other, and the loss says how far they are.

One net makes points of eight clusters. The other, the critic, gives each point a number. How much larger is the mean
number of real points? This is the distance of the two distributions, as long as the critic is nowhere steeper than 1.
The penalty keeps its slope near 1, at random places between real points and others. caffelite has no second
derivatives, and needs none here: the slope is a difference of two values, along the direction of the gradient.
I. Gulrajani et al., "Improved training of Wasserstein GANs", NeurIPS 2017.

python wgan_gp.py                # trains: a few seconds
python wgan_gp.py PICTURE.png    # draws points and the critic, too; needs matplotlib
"""

import sys

import numpy as np

import caffelite as cl

BATCH, STEPS, STEPS_OF_CRITIC, PENALTY = 128, 2000, 4, 1.0
CENTRES = np.stack([np.cos(np.arange(8) * np.pi / 4), np.sin(np.arange(8) * np.pi / 4)], axis=1)
rng = np.random.default_rng(0)
maker, critic = cl.MLP(4, [64, 64, 2], seed=0), cl.MLP(2, [64, 64, 1], activation=cl.LeakyReLU, seed=1)
of_maker, of_critic = (
    cl.Adam(net.parameters(), lr=cl.schedules.cosine(1e-3, steps=steps, end=1e-5), betas=(0.5, 0.9))
    for net, steps in ((maker, STEPS), (critic, STEPS * STEPS_OF_CRITIC))
)


def real_points(n):
    """Points (n, 2) of eight clusters around the origin."""
    return (CENTRES[rng.integers(8, size=n)] + rng.normal(0, 0.05, (n, 2))).astype(np.float32)


def noise(n):
    return rng.standard_normal((n, 4)).astype(np.float32)


def slope(x, e=0.01):
    """Return the slope of the critic at points (n, 2), along its gradient: (n, 1), differentiable by its weights."""
    gradient = cl.Tensor(cl.gradient(lambda x: critic(x).sum(), x))
    step = e * gradient / ((gradient**2).sum(axis=1, keepdims=True) + 1e-12).sqrt()
    return (critic(x + step) - critic(x - step)) / (2 * e)


def train_critic(real, made, between):
    """Do a step of the critic. Return the distance before it."""
    of_critic.zero_grad()
    distance = critic(real).mean() - critic(made).mean()
    penalty = ((slope(between) - 1) ** 2).mean()
    (PENALTY * penalty - distance).backward()
    of_critic.step()
    return distance


def train_maker(z):
    of_maker.zero_grad()
    (-critic(maker(z)).mean()).backward()  # the critic gets a gradient, too, and does not use it
    of_maker.step()


def points_for_critic():
    """Real points, made points, and points at random places between these."""
    real, made, share = real_points(BATCH), maker.predict(noise(BATCH)), rng.random((BATCH, 1), np.float32)
    return real, made, share * real + (1 - share) * made


critic_step, maker_step = cl.capture(train_critic, *points_for_critic()), cl.capture(train_maker, noise(BATCH))
for step in range(1, STEPS + 1):
    distance = np.mean([critic_step(*points_for_critic()) for _ in range(STEPS_OF_CRITIC)])
    maker_step(noise(BATCH))
    if step in (STEPS // 10, STEPS):
        points = maker.predict(noise(2000))
        away = np.linalg.norm(points[:, None] - CENTRES, axis=2)
        counts = np.bincount(away.argmin(axis=1), minlength=8)
        print(
            f"after {step} steps: distance {distance:.3f}, {(away.min(axis=1) < 0.2).mean():.0%} of the points in a "
            f"cluster, least points of a cluster {counts.min()} of 2000"
        )

if len(sys.argv) > 1:
    from matplotlib.figure import Figure

    places = np.linspace(-1.6, 1.6, 80, dtype=np.float32)
    across, up = np.meshgrid(places, places)
    values = critic.predict(np.stack([across.ravel(), up.ravel()], axis=1)).reshape(across.shape)
    axes = Figure(figsize=(5, 5), dpi=160, layout="constrained").subplots()
    axes.contourf(across, up, values, levels=24, cmap="Greys_r", alpha=0.6)
    axes.plot(*real_points(1000).T, ".", *points[:1000].T, ".", markersize=3)  # real, made
    axes.set_aspect("equal")
    axes.axis("off")
    axes.figure.savefig(sys.argv[1])
