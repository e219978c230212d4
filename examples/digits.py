"""Handwritten digits: train on 1,437 images of 8 × 8 pixels, and look at 360 others."""

import caffelite as cl

(x, y), (x_test, y_test) = cl.datasets.digits()
x, x_test = x.reshape(-1, 64), x_test.reshape(-1, 64)

model = cl.Model(seed=0)
model.add(cl.Linear(64, 100)).add(cl.ReLU()).add(cl.Linear(100, 10))
print(model.summary())

loss = cl.SoftmaxLoss()
history = model.fit(
    x,
    y,
    loss=loss,
    optimizer=cl.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4),
    epochs=30,
    batch_size=32,
    validation_split=0.1,  # 143 images that are not trained on
    metrics=["accuracy"],
)
held_out = history["val_accuracy"][-1]
print(f"{history.epochs} epochs: accuracy {history['accuracy'][-1]:.4f}, on held-out images {held_out:.4f}")

results = model.evaluate(x_test, y_test, loss=loss, metrics=["accuracy"])
print(f"test images: loss {results['loss']:.4f}, accuracy {results['accuracy']:.4f}")

wrong = (model.predict(x_test).argmax(axis=1) != y_test).nonzero()[0]
print(f"wrong: {len(wrong)} of {len(y_test)}")
