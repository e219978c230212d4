"""Trainings that are killed (SIGKILL) at random times, in the midst of writing a checkpoint too, and that go on.

    python tests/tools/crash_resume.py 100 --seed 1

Each training is a process that goes on from its checkpoint, if there is one, with another number of threads than
before, and is killed some time after it has written a checkpoint. After each kill the file has to be whole, and
whenever a training comes to its end, it has the bits of one that was never stopped; then it begins anew. Prints what
happened; the exit status is 1 if anything was wrong.
"""

import argparse
import hashlib
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

NETS = ("dense", "dropout", "convolution", "heads")
WRITTEN = "written\n"
KILLED = 1 if os.name == "nt" else -signal.SIGKILL  # the exit status


def train(net, checkpoint, threads, written=lambda: None):
    """Return the digest of all that a training has in the end, after going on from the checkpoint if it is there."""
    import caffelite as cl
    from caffelite.training.epochs import in_memory

    in_memory.REPLAY_SECONDS = 0.002  # so it is stopped in the midst of epochs, small as they are
    cl.set_num_threads(threads)
    (x, y), (x_test, y_test) = cl.datasets.digits()
    options = {"epochs": 10, "validation_data": (x_test, y_test), "metrics": ["accuracy"]}
    early = cl.callbacks.EarlyStopping(patience=100)
    if net == "dense":
        model = cl.Model([cl.Flatten(), cl.Linear(64, 200), cl.ReLU(), cl.Linear(200, 200), cl.ReLU()], seed=0)
        optimizer = cl.Adam(model.add(cl.Linear(200, 10)).parameters(), lr=1e-3)
        options |= {"metrics": ["f1"], "epochs": 20}
    elif net == "dropout":
        model = cl.Model([cl.Flatten(), cl.Linear(64, 100), cl.BatchNorm(100), cl.Tanh(), cl.Dropout(0.4)], seed=1)
        model.add(cl.DropConnect(100, 10))
        schedule = cl.schedules.cosine(0.2, 60 * 45, warmup=100)
        optimizer = cl.SGD(model.parameters(), lr=schedule, momentum=0.9, nesterov=True)
        options = {"epochs": 60, "validation_split": 0.2, "sample_weight": np.arange(len(x)) % 3}
        early = cl.callbacks.ReduceLROnPlateau(patience=3)
    elif net == "heads":
        model = two_heads(cl)
        optimizer = cl.AdamW(model.parameters(), lr=1e-3)
        y, y_test = (y, x.mean(axis=(1, 2))), (y_test, x_test.mean(axis=(1, 2)))
        options = {"epochs": 40, "validation_data": (x_test, y_test), "metrics": (["accuracy"], ["mae"])}
    else:
        model = cl.Model([cl.Conv2d(1, 6, 3), cl.BatchNorm(6), cl.ReLU(), cl.MaxPool2d(2), cl.Flatten()], seed=2)
        optimizer = cl.RMSProp(model.add(cl.Linear(54, 10)).parameters(), lr=1e-3, momentum=0.5)
        shift, flip = cl.augment.shift(1), cl.augment.flip()
        x = cl.DataGenerator(x[:, None], y, batch_size=50, transform=lambda a, b: flip(*shift(a, b)), seed=4)
        options |= {"validation_data": (x_test[:, None], y_test)}
    of_data = {"x": x} if net == "convolution" else {"x": x, "y": y}
    callbacks = [early]
    if checkpoint is not None:
        callbacks += [cl.callbacks.Checkpoint(checkpoint, seconds=0), Following(written)]
    resume = checkpoint if checkpoint is not None and os.path.exists(checkpoint) else None
    options |= {
        "loss": (cl.SoftmaxLoss(), cl.MSELoss()) if net == "heads" else cl.SoftmaxLoss(),
        "optimizer": optimizer,
        "callbacks": callbacks,
        "resume": resume,
        "verbose": 0,
    }
    history = model.fit(**of_data, **options)
    arrays = [*model.state_dict().values(), *map(np.asarray, optimizer.state_dict().values()), *history.values()]
    return hashlib.sha256(b"".join([np.asarray(array).tobytes() for array in arrays])).hexdigest()


def two_heads(cl):
    """Return a model of two outputs."""

    class TwoHeads(cl.Model):
        def __init__(self):
            super().__init__(seed=3)
            self.body, self.drop = cl.Model([cl.Flatten(), cl.Linear(64, 100), cl.ReLU()]), cl.Dropout(0.2)
            self.scores, self.ink = cl.Linear(100, 10), cl.Linear(100, 1)

        def call(self, x):
            h = self.drop(self.body(x))
            return self.scores(h), self.ink(h)

    return TwoHeads()


class Following:
    """Comes after a callback that writes between two steps, and says when it has written for the first time."""

    def __init__(self, say):
        self.say, self.said = say, False

    def between_steps(self):
        if not self.said:
            self.said = True
            self.say()

    def __call__(self, epoch, history):
        pass


class KilledTraining:
    """A net's training, killed as often as wanted."""

    def __init__(self, net, folder, reference=None):
        self.net, self.path = net, Path(folder, f"{net}.safetensors")
        self.kills = self.ends = self.leftovers = 0
        self.threads = 1
        self.reference = train(net, None, 1) if reference is None else reference

    def run(self, seconds=None):
        """Let it go on and kill it so many seconds after a checkpoint, unless it has come to its end by then."""
        self.threads = 3 - self.threads
        command = [sys.executable, __file__, "0", "--child", self.net, str(self.path), str(self.threads)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            output = process.stdout.readline()
            if output == WRITTEN:  # and not yet its end
                try:
                    output, _ = process.communicate(timeout=seconds)
                except subprocess.TimeoutExpired:
                    process.kill()
                    output, _ = process.communicate()
        assert process.returncode in (0, KILLED), f"{self.net} failed by itself"
        if output:
            assert output.strip() == self.reference, f"{self.net} ended with other bits after {self.kills} kills"
            self.ends += 1
            self.path.unlink()
        else:
            self.kills += 1
            self.leftovers += any(self.path.parent.glob(f"{self.path.name}.*.part"))
            self.check()

    def check(self):
        """Check that the checkpoint is there, and whole."""
        import caffelite as cl
        from caffelite.training.callbacks.resume import CheckpointFile

        cl.load(self.path, custom={"TwoHeads": type(two_heads(cl))})
        CheckpointFile(self.path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kills", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--child", nargs=3)
    options = parser.parse_args()
    if options.child:
        net, path, threads = options.child
        print(train(net, path, int(threads), written=lambda: print(WRITTEN, end="", flush=True)), flush=True)
        return
    rng = np.random.default_rng(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        trainings = [KilledTraining(net, folder) for net in NETS]
        while (kills := sum(training.kills for training in trainings)) < options.kills:
            trainings[kills % len(trainings)].run(rng.uniform(0, 1.0))
        for training in trainings:
            while not training.ends:
                training.run()
            print(
                f"{training.net}: {training.kills} kills, {training.leftovers} of them within a checkpoint's writing; "
                f"{training.ends} times at the end, always with the same bits"
            )


if __name__ == "__main__":
    sys.exit(main())
