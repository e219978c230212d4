"""XOR, learned one example at a time, with a loss written with Tensors."""

import caffelite as cl

EXAMPLES = [([0, 0], 0), ([0, 1], 1), ([1, 0], 1), ([1, 1], 0)]

model = cl.MLP(2, [4, 1], activation=cl.Tanh, seed=0)
optimizer = cl.SGD(model.parameters(), lr=0.05)

for epoch in range(500):
    total = 0.0
    for inputs, target in EXAMPLES:
        optimizer.zero_grad()
        loss = ((model(cl.Tensor([inputs])) - target) ** 2).sum()
        loss.backward()
        optimizer.step()
        total += loss.item()
    if (epoch + 1) % 100 == 0:
        print(f"epoch {epoch + 1}: loss {total / len(EXAMPLES):.1e}")

for inputs, target in EXAMPLES:
    output = model.predict([inputs]).item()
    print(f"{inputs[0]} xor {inputs[1]} = {int(output > 0.5)} (output {output:.3f}, target {target})")
