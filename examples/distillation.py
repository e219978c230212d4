"""Knowledge distillation: a small net learns from the probabilities of a large net, on images without labels.

The teacher has seen 1,437 labelled digits. The student has 50 labels, and all the images. The teacher's scores are
divided by a temperature. So its probabilities also show which wrong digits are nearly right. G. Hinton, O. Vinyals and
J. Dean, "Distilling the knowledge in a neural network", 2015.
"""

import caffelite as cl

TEMPERATURE = 3.0

(x, y), (x_test, y_test) = cl.datasets.digits()
x, x_test = x.reshape(-1, 64), x_test.reshape(-1, 64)
cross_entropy = cl.SoftmaxLoss()


def soft_cross_entropy(outputs, targets):
    """Return the cross-entropy at the temperature. T² makes up for gradients that are 1 / T² as large."""
    return cross_entropy(outputs / TEMPERATURE, targets) * TEMPERATURE**2


def train(sizes, x, y, loss, epochs):
    """Return a trained net and its accuracy on the test images."""
    model = cl.MLP(64, sizes, seed=0)
    model.fit(x, y, loss=loss, optimizer=cl.Adam(model.parameters(), lr=2e-3), epochs=epochs, verbose=0)
    return model, model.evaluate(x_test, y_test, loss=cross_entropy, metrics=["accuracy"])["accuracy"]


teacher, teacher_accuracy = train([256, 256, 10], x, y, cross_entropy, epochs=30)
_, label_accuracy = train([16, 10], x[:50], y[:50], cross_entropy, epochs=400)
soft_targets = cross_entropy.link(teacher.predict(x) / TEMPERATURE)  # the teacher's probabilities (n, 10)
student, student_accuracy = train([16, 10], x, soft_targets, soft_cross_entropy, epochs=60)

sizes = [sum(p.size for p in model.parameters()) for model in (teacher, student)]
print(f"teacher of {sizes[0]:,} parameters: test accuracy {teacher_accuracy:.4f}")
print(f"student of {sizes[1]:,} parameters, from 50 labels: test accuracy {label_accuracy:.4f}")
print(f"the same student, from the teacher: test accuracy {student_accuracy:.4f}")
