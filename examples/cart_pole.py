"""Reinforcement learning by a loop by hand: a net learns to balance a pole on a cart, only from falls.

32 carts run at once. After 200 steps of each, the policy's gradient (R. Williams, 1992) makes actions more likely if
they led to long runs. `capture` records the step once, and replays it after that. The cart is from A. Barto, R. Sutton
and C. Anderson, "Neuronlike adaptive elements that can solve difficult learning control problems", 1983.
"""

import numpy as np

import caffelite as cl

CARTS, STEPS = 32, 200
rng = np.random.default_rng(0)
policy = cl.MLP(4, [32, 2], activation=cl.Tanh, seed=0)
optimizer = cl.Adam(policy.parameters(), lr=0.01)


def move_carts(state, right):
    """Return the states (n, 4) after 20 ms of a push of 10 N: place, speed, angle, angular speed."""
    speed, angle, turning = state.T[1:]
    push = np.where(right, 10.0, -10.0) + 0.05 * turning**2 * np.sin(angle)
    turn = 9.8 * np.sin(angle) - np.cos(angle) * push / 1.1
    turn /= 0.5 * (4 / 3 - 0.1 * np.cos(angle) ** 2 / 1.1)
    rate = np.stack([speed, (push - 0.05 * turn * np.cos(angle)) / 1.1, turning, turn], axis=1)
    return state + 0.02 * rate


def run_carts():
    """Let the carts run. Return states (n, 4), the advantages of the pushes (n, 2), and the mean length of a run."""
    state, states, pushes, ends = rng.uniform(-0.05, 0.05, (CARTS, 4)), [], [], []
    for _ in range(STEPS):
        right = rng.random(CARTS) < cl.SoftmaxLoss().link(policy.predict(state))[:, 1]
        states.append(state)
        pushes.append(right)
        state = move_carts(state, right)
        ends.append((np.abs(state[:, 0]) > 2.4) | (np.abs(state[:, 2]) > 0.21))
        state = np.where(ends[-1][:, None], rng.uniform(-0.05, 0.05, (CARTS, 4)), state)
    worth, worths = np.full(CARTS, 50.0), []  # how long a cart goes on from here; later steps count less
    for end in reversed(ends):
        worth = 1 + 0.98 * worth * ~end
        worths.append(worth)
    worths = np.concatenate(worths[::-1])
    advantages = ((worths - worths.mean()) / worths.std())[:, None] * np.eye(2)[np.concatenate(pushes).astype(int)]
    length = CARTS * STEPS / max(np.sum(ends), 1)
    return np.concatenate(states).astype(np.float32), advantages.astype(np.float32), length


def learn(states, advantages):
    """Make pushes with a positive advantage more likely. `advantages` has 0 for the pushes not made."""
    optimizer.zero_grad()
    (-(policy(states).log_softmax() * advantages).sum() / len(states)).backward()
    optimizer.step()


learning = cl.capture(learn, *run_carts()[:2])  # this is a step, too
for number in range(1, 41):
    states, advantages, length = run_carts()
    learning(states, advantages)
    if number in (1, 10, 20, 40):
        print(f"round {number}: the pole stands for {length:.0f} steps of 20 ms")
