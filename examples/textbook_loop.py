"""The training loop by hand: forward, loss, backward, update. It gives the same bits as `fit` with `shuffle=False`."""

import caffelite as cl

EPOCHS, BATCH = 50, 32

x, y = cl.datasets.spiral(seed=0)


def make_model():
    model = cl.Model(seed=0)
    model.add(cl.Linear(2, 100)).add(cl.ReLU()).add(cl.Linear(100, 3))
    return model, cl.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)


model, optimizer = make_model()
loss = cl.SoftmaxLoss()
losses = []
for epoch in range(EPOCHS):
    total = 0.0
    for start in range(0, len(x), BATCH):
        xb, yb = x[start : start + BATCH], y[start : start + BATCH]

        optimizer.zero_grad()
        h = xb
        for function in model.functions:  # or: h = model.forward(xb)
            h = function.forward(h)
        value = loss.forward(h, yb)
        d = loss.backward()
        for function in reversed(model.functions):  # or: model.backward(d)
            d = function.backward(d)
        optimizer.step()

        total += float(value) * len(xb)
    losses.append(total / len(x))
    if (epoch + 1) % 10 == 0:
        print(f"epoch {epoch + 1}: loss {losses[-1]:.4f}")

fitted, optimizer = make_model()
history = fitted.fit(
    x, y, loss=cl.SoftmaxLoss(), optimizer=optimizer, epochs=EPOCHS, batch_size=BATCH, shuffle=False, verbose=0
)
same_weights = all(
    p.data.tobytes() == q.data.tobytes() for p, q in zip(model.parameters(), fitted.parameters(), strict=True)
)
if not same_weights or history["loss"] != losses:
    raise SystemExit("the loop by hand and fit(shuffle=False) differ")
print("fit(shuffle=False) gives the same weights and losses, to the bit")
