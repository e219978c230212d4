"""Recognize activities from the sensors of a phone in the pocket: a 1-D convolution on series of 9 channels.

The program makes the series itself. A series is 2.56 s long, with 128 samples of acceleration, turning and gravity
along three axes. The person is walking, going up or down stairs, sitting, standing or lying. The form is from D.
Anguita et al., "A public domain dataset for human activity recognition using smartphones", ESANN 2013.

python motion.py    # a few seconds
"""

import numpy as np

import caffelite as cl

ACTIVITIES = ["walking", "upstairs", "downstairs", "sitting", "standing", "lying"]
STEPS_PER_SECOND = np.array([1.9, 1.6, 2.1, 0, 0, 0])
STRENGTH = np.array([0.35, 0.3, 0.45, 0, 0, 0])  # of acceleration, in g
HARMONIC = np.array([0.4, 0.2, 0.8, 0, 0, 0])  # how hard a step lands, as a share of its strength
LEAN = np.radians([15, 30, 10, 60, 12, 88])  # of the phone from upright, the mean of its wearers


def recordings(n, seed):
    """n series (n, 9, 128) float32, noisy, of wearers who differ, and what they do, (n,) int64 in 0 … 5."""
    rng = np.random.default_rng(seed)
    activity = rng.integers(0, 6, n)

    def draw_for_wearers(values, spread):
        """Return a number for each series, (n, 1): its activity's number times a random factor of its wearer."""
        return (values[activity] * rng.lognormal(0, spread, n))[:, None]

    t = np.arange(128) / 50  # seconds
    phase = 2 * np.pi * (draw_for_wearers(STEPS_PER_SECOND, 0.12) * t + rng.random((n, 1)))
    strength = draw_for_wearers(STRENGTH, 0.35)
    bounce = strength * (np.sin(phase) + draw_for_wearers(HARMONIC, 0.3) * np.sin(2 * phase + 1))
    sway = strength / 2 * np.sin(phase / 2)  # left and right: half as often
    lean, turn = draw_for_wearers(LEAN, 0.12) + 0.1 * np.sin(phase / 2) * strength, rng.normal(0, 0.5, (n, 1))
    gravity = [np.cos(lean), np.sin(lean) * np.cos(turn), np.sin(lean) * np.sin(turn)]
    acceleration = [bounce, sway, 0.6 * np.roll(bounce, 8, axis=1)]
    turning = [1.5 * sway, 0.8 * bounce, 2 * np.roll(sway, 16, axis=1)]
    clean = np.stack([np.broadcast_to(c, (n, 128)) for c in (*acceleration, *turning, *gravity)], axis=1)
    return (clean + rng.normal(0, 0.15, clean.shape)).astype(np.float32), activity


(x, y), (x_test, y_test) = recordings(3_000, seed=0), recordings(1_000, seed=1)

model = cl.Model(seed=0)
model.add(cl.Conv1d(9, 32, 5, padding="same")).add(cl.BatchNorm(32)).add(cl.ReLU()).add(cl.MaxPool1d(2))
model.add(cl.Conv1d(32, 64, 5, padding="same")).add(cl.BatchNorm(64)).add(cl.ReLU())
model.add(cl.GlobalAvgPool()).add(cl.Dropout(0.3)).add(cl.Linear(64, 6))
print(model.summary((9, 128)))

optimizer = cl.Adam(model.parameters(), lr=3e-3)
model.fit(
    x, y, loss=cl.SoftmaxLoss(), optimizer=optimizer, epochs=10, validation_split=0.1, metrics=["accuracy"], verbose=2
)

predictions = model.predict(x_test).argmax(axis=1)
print(f"test series: accuracy {(predictions == y_test).mean():.4f}")
counts = np.zeros((6, 6), int)
np.add.at(counts, (y_test, predictions), 1)
print(f"{'':10}" + "".join(f"{name:>11}" for name in ACTIVITIES) + "   <- predicted")
for name, row in zip(ACTIVITIES, counts, strict=True):
    print(f"{name:10}" + "".join(f"{count:11}" for count in row))
