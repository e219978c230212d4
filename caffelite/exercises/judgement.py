"""Judgement: what a curve, an accuracy and a program tell you."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from caffelite.data import datasets
from caffelite.exercises.exercise import Wrong, call_answer, check_equal, check_unchanged, describe, exercise

RNG = np.random.default_rng

#: The losses of five nets on images of digits, by epoch: of the training, and of 287 other images.
EPOCHS = (1, 2, 5, 10, 20, 40, 80)
CURVES = {
    "A": ((2.22, 2.04, 1.11, 0.44, 0.20, 0.10, 0.04), (2.15, 1.93, 1.02, 0.48, 0.26, 0.16, 0.13)),
    "B": ((2.30, 2.19, 1.77, 0.76, 0.07, 0.00, 0.00), (2.23, 2.17, 1.78, 0.93, 0.58, 0.70, 0.79)),
    "C": ((2.24, 1.98, 1.66, 1.53, 1.46, 1.42, 1.39), (2.04, 1.91, 1.68, 1.66, 1.59, 1.58, 1.55)),
    "D": ((1.94, 2.06, 1.00, 2.13, 2.32, 2.32, 2.32), (1.83, 1.39, 0.78, 1.81, 2.32, 2.31, 2.31)),
    "E": ((2.30, 2.30, 2.28, 2.25, 2.18, 2.01, 1.62), (2.31, 2.31, 2.29, 2.26, 2.19, 2.04, 1.66)),
}


def check_choices(answer: Any, right: Mapping[str, str], choices: str, reasons: Mapping[str, str]) -> None:
    """Raise Wrong unless a dict has the right one of the choices for each key.

    `right` has several choices of a key with a space between them. `reasons` are remarks: for a wrong choice of a key
    ("A fine"), or for all others ("A").
    """
    if not isinstance(answer, dict):
        raise Wrong(f"The answer has to be a dict with the keys {', '.join(right)}, and is {describe(answer)}.")
    for key, accepted in right.items():
        if key not in answer:
            raise Wrong(f"The dict has no key {key!r}; it needs {', '.join(right)}.")
        choice = str(getattr(answer[key], "__name__", answer[key]))  # a class of a loss is as good as its name
        if choice not in choices.split(", "):
            raise Wrong(f"{key!r} is {describe(answer[key])}; choose one of {choices}.")
        if choice not in accepted.split(" or "):
            raise Wrong(f"{key!r} is not {choice}. {reasons.get(f'{key} {choice}', reasons[key])}")


@exercise(
    "easy",
    10,
    "Look at the last training loss first. Is it small? Only then does the gap to the validation loss mean anything.",
    "A training loss that hardly moves: does it fall ever more slowly (net too small), or ever faster (rate too low)?",
    "To stop well, take the epoch with the smallest validation loss. The training loss can't tell you.",
    takeaway="Nearly every pair of curves you'll ever see looks like one of these five.",
)
def curves(answer: Any) -> None:
    """Write `curves`, a dict: say for each of five nets what its losses tell you, and when to stop.

    Here is the loss on the training images, and below it the loss on 287 other images (validation), after 1 to 80
    epochs:

        epoch             1     2     5    10    20    40    80
        A  training    2.22  2.04  1.11  0.44  0.20  0.10  0.04
           validation  2.15  1.93  1.02  0.48  0.26  0.16  0.13
        B  training    2.30  2.19  1.77  0.76  0.07  0.00  0.00
           validation  2.23  2.17  1.78  0.93  0.58  0.70  0.79
        C  training    2.24  1.98  1.66  1.53  1.46  1.42  1.39
           validation  2.04  1.91  1.68  1.66  1.59  1.58  1.55
        D  training    1.94  2.06  1.00  2.13  2.32  2.32  2.32
           validation  1.83  1.39  0.78  1.81  2.32  2.31  2.31
        E  training    2.30  2.30  2.28  2.25  2.18  2.01  1.62
           validation  2.31  2.31  2.29  2.26  2.19  2.04  1.66

    The keys `"A"` to `"E"` get the verdicts `"fine"`, `"overfits"`, `"underfits"`, `"rate too high"` and
    `"rate too low"`, each once. The key `"stop"` gets the epoch of the table at which you would stop net B.
    Guessing has a loss of 2.30.
    """
    right = {"A": "fine", "B": "overfits", "C": "underfits", "D": "rate too high", "E": "rate too low"}
    reasons = {
        "A": "Its training loss gets small, and its validation loss falls with it to the end.",
        "B": "Its training loss gets to 0, while its validation loss rises after epoch 20.",
        "B fine": "Its training loss is the smallest of all, but its validation loss rises after epoch 20.",
        "C": "It falls ever more slowly, and ends far from 0, even on the training images: the net is too small.",
        "C overfits": "A net that overfits has a tiny training loss; this one is bad even on its training images.",
        "C rate too low": "With too low a rate, the loss would still be falling at the end, faster than before.",
        "D": "It falls, jumps up, and stays at 2.32, as bad as guessing: its steps are too large.",
        "D overfits": "When a net overfits, its training loss keeps falling. Here the training loss jumps up, too.",
        "E": "It falls all the time, and faster towards the end. It has only not got far: its steps are too small.",
        "E underfits": "It's still falling, and faster towards the end. A net that is too small slows down instead.",
    }
    check_choices(answer, right, ", ".join(right.values()), reasons)
    stop = answer.get("stop")
    if isinstance(stop, np.ndarray) or stop not in EPOCHS:  # an array has no single answer to `in`
        raise Wrong(f"'stop' is {describe(stop)}; it should be one of the epochs {', '.join(map(str, EPOCHS))}.")
    if stop != 20:
        late = "after it, the net only memorizes" if stop > 20 else "until then, it still gets better on new images"
        raise Wrong(f"Don't stop net B at epoch {stop}: the validation loss is smallest at another epoch; {late}.")


@exercise(
    "easy",
    10,
    "Which of them are good on their training data? For these, the training isn't the problem: the data are.",
    "If the loss doesn't change at all, the gradient is 0. If it changes a little, the step is small.",
    "100 % on labels that have nothing to do with the images is possible: a large net can memorize anything.",
    takeaway="First look at the training accuracy, then at the loss of the first epochs, then at ten rows of the data.",
)
def ten_percent(answer: Any) -> None:
    """Write `ten_percent`, a dict: find out why each of five nets reads only 10 % of the test images of digits.

        net  loss, epochs 1, 2, 3 … last     training  test  predicts
        A    2.303  2.303  2.303 …  2.303        10 %  10 %  5 for every image
        B    2.325  2.297  2.280 …  0.003       100 %   8 %  each digit about equally often
        C    2.308  2.308  2.308 …  2.305         9 %   9 %  3 for most images
        D    33.91  2.388  2.384 …  2.389        10 %  10 %  2 for every image
        E    1.690  0.573  0.288 …  0.036       100 %  10 %  4 for every test image

    The keys `"A"` to `"E"` get these reasons, each once:

    - `"weights are 0"`: all of them, at the beginning.
    - `"rate too low"` or `"rate too high"`: the learning rate.
    - `"labels of other images"`: in the training data, images and labels don't belong together.
    - `"test images transposed"`: rows and columns of the test images are swapped.
    """
    right = {
        "A": "weights are 0",
        "B": "labels of other images",
        "C": "rate too low",
        "D": "rate too high",
        "E": "test images transposed",
    }
    reasons = {
        "A": "Its loss stays at 2.303 = log 10 to the last digit, so the hidden layer gets no gradient at all.",
        "A rate too low": "Even a tiny rate changes something in a hundred steps. Here the gradient itself is 0.",
        "B": "It took long, and then knew each training image and nothing about digits: it memorized nonsense.",
        "B test images transposed": "It has learned slowly, as if there were nothing to understand. E was fast.",
        "C": "Its loss falls, but only by 0.003: it moves in the right direction, in steps that are far too small.",
        "C weights are 0": "Its loss does fall, from 2.308 to 2.305. With weights of 0, nothing would move.",
        "D": "Its first loss is 33.9, much worse than guessing. Only a step that is far too large gets a net there.",
        "E": "It has learned quickly and well. So the training is all right, and the test images must be different.",
        "E labels of other images": "Wrong labels can only be memorized, slowly, as B does. This loss falls at once.",
    }
    check_choices(answer, right, ", ".join(right.values()), reasons)


@exercise(
    "easy",
    10,
    "First ask: is the target a class, several labels, a number, or a count?",
    "One of ten: SoftmaxLoss. Each of twenty by itself: SigmoidLoss. Squared, an error of 10 equals 100 errors of 1.",
    "A range between two values has two ends, and each of them is a quantile.",
)
def losses(answer: Any) -> None:
    """Write `losses`, a dict: choose one of caffelite's losses for each of six tasks.

    - `"digit"`: which of the ten digits does an image show?
    - `"tags"`: which of twenty tags fit a photo? Often several do.
    - `"price"`: what does a flat cost? All prices are checked.
    - `"typos"`: the same, but one price in fifty has one zero too many.
    - `"calls"`: how many calls will come in during the next hour?
    - `"parcel"`: between which two times do nine out of ten parcels arrive? Most are on time, a few very late.

    Choose from `"SoftmaxLoss"`, `"SigmoidLoss"`, `"MSELoss"`, `"HuberLoss"`, `"MAELoss"`, `"PoissonLoss"`,
    `"GaussianLoss"` and `"QuantileLoss"`.
    """
    right = {
        "digit": "SoftmaxLoss",
        "tags": "SigmoidLoss",
        "price": "MSELoss",
        "typos": "HuberLoss or MAELoss",
        "calls": "PoissonLoss",
        "parcel": "QuantileLoss",
    }
    choices = "SoftmaxLoss, SigmoidLoss, MSELoss, HuberLoss, MAELoss, PoissonLoss, GaussianLoss, QuantileLoss"
    reasons = {
        "digit": "Exactly one of ten classes is right, so the probabilities of the ten share 1.",
        "digit SigmoidLoss": "It would allow an image to show two digits, or none. One of ten is right.",
        "digit MSELoss": "A 9 is not three times a 3: digits are names of classes here, and not quantities.",
        "tags": "Each tag is a yes or no by itself.",
        "tags SoftmaxLoss": "Its probabilities share 1, so a photo could have only one tag. Here each is a yes or no.",
        "price": "A price is a number, and without outliers the squared error is the usual choice: it learns the mean.",
        "typos": "One price that is ten times too high has an enormous error. Take a loss that isn't squared far out.",
        "typos QuantileLoss": "Its quantile 0.5, the median, would do. MAELoss says it more simply.",
        "typos MSELoss": "It squares errors: one price that is ten times too high outweighs all others.",
        "calls": "The target is a count: 0, 1, 2 …. It varies more when it is large, and is never negative.",
        "calls MSELoss": "It may predict fewer than 0 calls, and takes quiet and busy hours as equally certain.",
        "parcel": "You want two ends that hold nine of ten parcels: quantiles.",
        "parcel GaussianLoss": "It gives a range, too, but the same to both sides. Here the late side is much longer.",
        "parcel MSELoss": "It gives one number, the mean, and no range.",
    }
    check_choices(answer, right, choices, reasons)


@exercise(
    "medium",
    10,
    "Go through the losses one by one, as training does. You don't know those that come later.",
    "Keep two things: the best epoch so far, and its loss. Stop when epoch − best epoch ≥ patience.",
    takeaway="`cl.callbacks.EarlyStopping(patience=…)` does the same, and keeps the parameters of that epoch.",
)
def best_epoch(answer: Any) -> None:
    """Write `best_epoch(losses, patience)`: stop in time, and return the epoch whose parameters you keep.

    `losses` are the validation losses of epochs 1, 2, 3 and so on. Training stops after `patience` epochs in a row that
    are not better than the best one so far. You can't know the losses of the epochs that would come later. Return the
    number of the best epoch, counted from 1.
    """
    for losses, patience, right in (
        ([0.9, 0.5, 0.6, 0.4, 0.45, 0.42, 0.41, 0.3, 0.1], 3, 4),
        ([0.9, 0.7, 0.8, 0.75, 0.72, 0.71, 0.2], 4, 2),
        ([3.0, 2.0, 1.0], 5, 3),
        ([1.0, 1.0, 1.0, 0.5], 2, 1),
        ([0.9, 1.0, 0.8, 0.9, 0.7, 0.8, 0.6], 2, 7),
    ):
        what = f"best_epoch({losses}, {patience})"
        stops = next((i for i in range(len(losses)) if i + 1 - right >= patience), len(losses) - 1) + 1
        best = int(np.argmin(losses)) + 1
        mistakes = [
            (right - 1, "epochs count from 1 here, and Python counts from 0."),
            (best, before := "training has stopped before that epoch, so you can't know its loss."),
            (best - 1, before),
            (stops, "in this epoch the training stops. Keep the parameters of the best one before it."),
        ]
        if right == 7:
            mistakes.append((3, "patience counts epochs in a row: count from 0 again after each better one."))
        check_equal(what, call_answer(what, answer, losses, patience), right, [m for m in mistakes if m[0] != right])


@exercise(
    "medium",
    15,
    "`order = rng.permutation(len(x))`: the first rows of this order are one part, and the rest are the other.",
    "Mean and standard deviation are something that you learn from data. So learn them from the training part alone.",
    "`mean, std = x[train].mean(axis=0), x[train].std(axis=0)`. Then scale both parts: `(x - mean) / std`.",
    takeaway="Whatever you compute from validation rows before the end makes the result look better than it is.",
)
def split(answer: Any) -> None:
    """Write `split(x, y, share, rng)`: hold out rows for validation, and scale the columns without a data leak.

    x is (n, d), y is (n,). rng, a NumPy generator, decides which rows are held out; share = 0.25 is a quarter of them.
    Bring each column to mean 0 and standard deviation 1 on the training rows, and scale the held-out rows in the same
    way. Return x_train, y_train, x_val and y_val. Don't change x.
    """
    n = 40
    y = np.arange(n)
    x = np.column_stack([RNG(0).permutation(n) * 10.0, np.exp(y / 8)])
    orders = []
    for seed in (0, 1):
        result = call_answer("split(x, y, 0.25, rng)", answer, x, y, 0.25, RNG(seed))
        if not isinstance(result, tuple | list) or len(result) != 4:
            raise Wrong("Return four arrays: x_train, y_train, x_val, y_val.")
        x_train, y_train, x_val, y_val = map(np.asarray, result)
        if (len(x_train), len(x_val)) == (10, 30):
            raise Wrong("A quarter is for training, and the rest held out. share is the part that is held out.")
        sizes = [len(part) for part in result]
        if sizes == [30, 10, 30, 10]:
            raise Wrong("That's scikit-learn's order. Here it is x_train, y_train, x_val, y_val.")
        if sizes != [30, 30, 10, 10]:
            raise Wrong(f"Of 40 rows, 30 are for training and 10 are held out. Your four arrays have {sizes} rows.")
        if set(y_train) & set(y_val):
            raise Wrong(f"Row {min(set(y_train) & set(y_val))} is in both parts. Never train on a held-out row.")
        if sorted([*y_train, *y_val]) != list(y):
            raise Wrong("Some rows come twice, and others are missing. Use one permutation for all rows.")
        check_scaled(x[y_train], x_train, x[y_val], x_val, x)
        orders.append(y_val.tolist())
    if orders[0] == orders[1]:
        raise Wrong("Two different generators hold out the same rows. Shuffle with rng: rows may be sorted by class.")
    check_unchanged("split", lambda x: answer(x, y.copy(), 0.25, RNG(0)), x)


def check_scaled(train: np.ndarray, x_train: np.ndarray, val: np.ndarray, x_val: np.ndarray, x: np.ndarray) -> None:
    """Raise Wrong unless x_train and x_val are the rows train and val of x, scaled by the training rows."""

    def scale(rows: np.ndarray, by: np.ndarray) -> np.ndarray:
        return (rows - by.mean(axis=0)) / by.std(axis=0)

    apart = "the rows don't belong to their y. Use the same order for both."
    for name, rows, got in (("x_train", train, x_train), ("x_val", val, x_val)):
        mistakes = [
            (rows, "it isn't scaled."),
            (scale(rows, x), "the mean and std come from all rows. That's a data leak: use the training rows only."),
            (rows - train.mean(axis=0), "it isn't divided by the standard deviation."),
            ((rows - train.mean()) / train.std(), "each column has its own mean and standard deviation: axis=0."),
        ]
        if name == "x_val":
            mistakes.append((scale(val, val), "it has its own mean and std. Scale it by those of the training rows."))
        if np.shape(got) == rows.shape and np.allclose(np.sort(got, axis=0), np.sort(scale(rows, train), axis=0)):
            mistakes.append((None, apart))
        check_equal(name, got, scale(rows, train), mistakes)


@exercise(
    "medium",
    15,
    "Rates differ by factors, and not by sums. `np.logspace(-5, 0, 6)` makes 1e-5, 1e-4, … 1.",
    "First one rate for each power of ten. Then try rates around the best one.",
    "A run that has diverged returns nan, and `np.argmin` takes nan for the smallest: use `np.nanargmin`.",
    takeaway="Coarse first, then fine: this is how people search by hand, too.",
)
def find_rate(answer: Any) -> None:
    """Write `find_rate(train)`: find a good learning rate in at most 12 training runs.

    train(lr) trains a new net with the learning rate lr, and returns its validation loss, or nan if the training has
    diverged. The best rate is somewhere from 1e-6 to 1. Return a rate whose loss is at most 20 % above the best loss.
    """
    for best in (3e-4, 0.05, 2e-6):
        check_rate(answer, best)


def check_rate(answer: Any, best: float) -> None:
    """Raise Wrong unless the answer finds nearly this rate, in 12 training runs."""
    rates: list[float] = []

    def loss_at(lr: float) -> float:
        decades = np.log10(lr / best) if lr > 0 else -np.inf
        return float(1 + np.minimum(1.5 * decades**2, 3)) if decades < 1.5 else np.nan

    def train(lr: float) -> float:
        rates.append(float(lr))
        return loss_at(lr)

    rate = call_answer("find_rate(train)", answer, train)
    if len(rates) > 12:
        raise Wrong(f"It made {len(rates)} training runs; 12 are allowed.")
    if not isinstance(rate, (int, float, np.number)):
        raise Wrong(f"find_rate has to return a learning rate, and returned {describe(rate)}.")
    loss = loss_at(float(rate))
    if any(rate == loss_at(lr) for lr in rates):
        raise Wrong(f"It returned {rate:.3g}, which is a loss. Return the rate that had this loss.")
    if np.isnan(loss):
        raise Wrong(f"With the rate {rate:.3g} that it returned, the training diverges: the loss is nan.")
    if loss <= 1.2:
        return
    advice = "Try other powers of ten."
    if any(loss_at(lr) < loss * 0.999 for lr in rates):
        advice = "It has tried a better one itself. Return the rate with the smallest loss."
    elif len(rates) > 2 and np.allclose(np.diff(rates, 2), 0, atol=1e-9):
        advice = "It tries rates at equal distances, so nearly all are large. Try powers of ten: np.logspace."
    elif loss < 1.6:
        advice = "That's near. Use the training runs that are left for rates around the best one."
    raise Wrong(f"The best rate is {best:.3g}. It found {rate:.3g}, with {loss:.2f} times the loss. {advice}")


@exercise(
    "hard",
    25,
    "Make it overfit ten images first. If it can't even do that, there's a bug, and more epochs won't help.",
    "One mistake is in the data, one in the net and one in the training. Print the labels of some rows, for example.",
    "x is shuffled and y isn't; `lr=1.0` is far too high for Adam; the last ReLU turns all negative scores into 0.",
    takeaway="You've found all three.",
)
def read_digits(answer: Any) -> str:
    """Write `read_digits(x, y)`: find the three mistakes in this program, which should read digits.

        def read_digits(x, y):
            rng = np.random.default_rng(0)
            x = x[rng.permutation(len(x))]
            layers = [cl.Linear(64, 100), cl.ReLU(), cl.Linear(100, 10), cl.ReLU()]
            model = cl.Model(layers, seed=0)
            optimizer = cl.Adam(model.parameters(), lr=1.0)
            loss = cl.SoftmaxLoss()
            model.fit(x, y, loss=loss, optimizer=optimizer, epochs=20, verbose=0)
            return lambda x: model.predict(x).argmax(axis=1)

    x is (1437, 64): images of 8 × 8 pixels, from 0 to 1. y is (1437,), their digits. The function that
    `read_digits` returns should get 95 % of 360 other images right. At the moment, it gets 10 %. Change as little as
    you can.
    """
    (x, y), (x_test, y_test) = datasets.digits()
    predict = call_answer("read_digits(x, y)", answer, x.reshape(-1, 64), y)
    predicted = np.asarray(call_answer("The result of read_digits", predict, x_test.reshape(-1, 64)))
    if predicted.shape != y_test.shape:
        raise Wrong(f"Your function returned shape {predicted.shape} for 360 images; it should be (360,).")
    accuracy = (predicted == y_test).mean()
    counts = np.bincount(np.clip(predicted.astype(int), 0, 9), minlength=10)
    if accuracy >= 0.95:
        return f"{accuracy:.1%} of the test images."
    never = ", ".join(map(str, np.flatnonzero(counts == 0)))
    if counts.max() > 300:
        reason = (
            f"It says {counts.argmax()} for nearly every image. Dead units do that: the step may be too large, "
            "or there is a layer too many, or the labels make no sense."
        )
    elif accuracy < 0.25:
        reason = "It says each digit now and then, but not for the right images. Do the labels belong to their images?"
    elif never:
        reason = f"That's better. But it never says {never}: for these, the last layer gives 0. Why can't it go below?"
    else:
        reason = "It learns. What keeps it from learning more?"
    raise Wrong(f"{accuracy:.0%} of the test images are right; it should be 95 %. {reason}")
