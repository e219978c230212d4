"""A graph net finds the two halves of a karate club from its friendships and the names of two members.

In 1972, a club of 34 people split in two: some stayed with the instructor, member 1, and some with the president,
member 34. W. Zachary had written down all friendships. Each layer of the net mixes the numbers of a member with the
numbers of the friends, by a product with the adjacency matrix. Only members 1 and 34 have a label. The net is wrong
about one member, as Zachary was: 9 took the president's side, but stayed with the instructor. The data are from
W. Zachary, "An information flow model for conflict and fission in small groups", 1977. The net is from T. Kipf and
M. Welling, "Semi-supervised classification with graph convolutional networks", ICLR 2017.

python karate_club.py                # trains
python karate_club.py PICTURE.png    # draws the club and what the net says of it, too; needs matplotlib
"""

import sys

import numpy as np

import caffelite as cl

MEMBERS, INSTRUCTOR, PRESIDENT = 34, 0, 33
FRIENDS = {  # each friendship once, members counted from 1
    1: [2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 18, 20, 22, 32],
    2: [3, 4, 8, 14, 18, 20, 22, 31],
    3: [4, 8, 9, 10, 14, 28, 29, 33],
    4: [8, 13, 14],
    5: [7, 11],
    6: [7, 11, 17],
    7: [17],
    9: [31, 33, 34],
    24: [26, 28, 30, 33, 34],
    25: [26, 28, 32],
    26: [32],
    27: [30, 34],
    29: [32, 34],
    33: [15, 16, 19, 21, 23, 30, 31, 32, 34],
    34: [10, 14, 15, 16, 19, 20, 21, 23, 28, 30, 31, 32],
}
OF_INSTRUCTOR = [1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 17, 18, 20, 22]  # after the split


class GraphNet(cl.Model):
    """Features (n, n) and an adjacency matrix (n, n) to scores of two groups, (n, 2)."""

    def __init__(self, members, seed=None):
        super().__init__(seed=seed)
        self.first, self.second = cl.Linear(members, 16, bias=False), cl.Linear(16, 2, bias=False)

    def call(self, x, adjacency):
        h = (adjacency @ self.first(x)).relu()
        return adjacency @ self.second(h)


def normalize(links):
    """Return A + I, divided by the square roots of its row sums and of its column sums."""
    links = links + np.eye(len(links))
    scale = 1 / np.sqrt(links.sum(axis=1))
    return (scale[:, None] * links * scale).astype(np.float32)


links = np.zeros((MEMBERS, MEMBERS))
for member, friends in FRIENDS.items():
    links[member - 1, np.array(friends) - 1] = 1
links = np.maximum(links, links.T)
adjacency, x = normalize(links), np.eye(MEMBERS, dtype=np.float32)  # the features only tell members apart
y = np.where(np.isin(np.arange(MEMBERS) + 1, OF_INSTRUCTOR), 0, 1)

model = GraphNet(MEMBERS, seed=0)
history = model.fit(
    (x, adjacency),
    y,
    sample_weight=np.isin(np.arange(MEMBERS), [INSTRUCTOR, PRESIDENT]),  # the other labels count nothing
    loss=cl.SoftmaxLoss(),
    optimizer=cl.Adam(model.parameters(), lr=0.01),
    epochs=100,
    batch_size=MEMBERS,  # the whole graph
    shuffle=False,
    verbose=0,
)
found = model.predict((x, adjacency)).argmax(axis=1)
print(f"{MEMBERS} members, {int(links.sum()) // 2} friendships, two labels: loss {history['loss'][-1]:.4f}")
print(f"the right half for {(found == y).sum()} members; wrong: {[int(i) + 1 for i in np.flatnonzero(found != y)]}")

if len(sys.argv) > 1:
    from matplotlib.figure import Figure

    _, vectors = np.linalg.eigh(adjacency)
    places, p = vectors[:, [-2, -3]], cl.SoftmaxLoss().link(model.predict((x, adjacency)))[:, 1]
    axes = Figure(figsize=(6, 5), dpi=160, layout="constrained").subplots()
    for i, j in np.argwhere(np.triu(links)):
        axes.plot(*places[[i, j]].T, color="0.8", linewidth=0.7, zorder=1)
    drawn = axes.scatter(*places.T, c=p, cmap="coolwarm", vmin=0, vmax=1, edgecolors="0.3", s=190, zorder=2)
    for i, (across, up) in enumerate(places):
        axes.text(across, up, i + 1, fontsize=7, ha="center", va="center", zorder=3)
    axes.axis("off")
    axes.figure.colorbar(drawn, label="probability of staying with the president", shrink=0.7)
    axes.figure.savefig(sys.argv[1])
