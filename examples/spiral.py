"""A complete program: a network with one hidden layer classifies three intertwined spirals."""

import caffelite as cl

x, y = cl.datasets.spiral(points_per_class=100, classes=3, seed=0)  # (300, 2) float32, (300,) int64

model = cl.Model(seed=0)
model.add(cl.Linear(2, 100)).add(cl.ReLU()).add(cl.Linear(100, 3))

history = model.fit(
    x,
    y,
    loss=cl.SoftmaxLoss(),
    optimizer=cl.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4),
    epochs=300,
    batch_size=32,
)
scores = model.predict(x)  # (300, 3), raw outputs
print((scores.argmax(axis=1) == y).mean())
