"""Products of operands rounded to bfloat16: training steps beside float32's, and beside PyTorch's autocast.

    python benchmarks/precision.py                    # the peer is PyTorch; without it, caffelite alone
    python benchmarks/precision.py --loss-after 2000  # instead: the GPT's loss beside float32's after so many steps
    python benchmarks/precision.py --quick            # only to see that it works

µs a step of a net of Linears and of a GPT: caffelite's `fit` in both precisions, PyTorch in float32 and under
`torch.autocast("cpu", torch.bfloat16)`. Each has a process of its own, all on the same core, one working at a time, in
rounds. If the processor has AMX, PyTorch's products use it, too; `ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16` in the
environment keeps PyTorch from AMX, and `CAFFELITE_BFLOAT16="one by one"` keeps caffelite from all special instructions.
"""

import argparse
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import harness
from contestants import caffelite, pytorch_trainer, start_pytorch, tensors
from sequences import EPOCHS, TOLERANCE, TextGPT
from sequences import NETS as SEQUENCES
from steps import prepare
from workloads import WORKLOADS, Workload


@dataclass(frozen=True)
class Dense(Workload):
    """A workload of Linears with ReLU between them, also as PyTorch's module."""

    @property
    def classes(self):
        return self.sizes[-1]

    def peer_weights(self, weights):
        return weights

    def module(self):
        from torch import nn

        layers = [layer for shape in pairwise(self.sizes) for layer in (nn.Linear(*shape), nn.ReLU())]
        return nn.Sequential(*layers[:-1])


NETS = {"784-512-512-10": Dense(**vars(WORKLOADS["mnistbig"])), "gpt": SEQUENCES["gpt"]}


# ---- the contestants: each prepares, and returns train(epochs, record) -> (seconds, losses) -------------------------


def caffelite_contestant(precision, task):
    import caffelite as cl

    train = caffelite(task)

    def train_in_precision(epochs, record):
        with cl.precision(precision):
            return train(epochs, record)

    return train_in_precision


def pytorch(task, autocast):
    torch = start_pytorch(task)

    class Autocast(torch.nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

        def forward(self, *inputs):
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                return self.module(*inputs).float()

    module = Autocast(task.net.module())
    return pytorch_trainer(task, module, tensors(task), task.net.peer_weights(task.weights), compiled=False)


CONTESTANTS = {
    "caffelite": partial(caffelite_contestant, "float32"),
    "caffelite, bfloat16": partial(caffelite_contestant, "bfloat16"),
    "PyTorch": partial(pytorch, autocast=False),
    "PyTorch, autocast": partial(pytorch, autocast=True),
}


# ---- times and losses -----------------------------------------------------------------------------------------------


def report_times(name, net, rounds, quick):
    """Print the least time of a step of each contestant, and times as multiples of caffelite's in bfloat16."""
    task, _, timed = prepare(net, quick, caffelite)
    processes = {who: harness.Process(make, task) for who, make in CONTESTANTS.items()}
    processes = {who: process for who, process in processes.items() if not process.missing}
    losses = {who: train(task.epochs_at_once, True)[1][-1] for who, train in processes.items()}
    seconds = {who: [] for who in processes}
    for _ in range(rounds):
        for who, train in processes.items():
            seconds[who].append(train(timed, False)[0])
    for process in processes.values():
        process.close()
    least = {who: 1e6 * min(times) / timed / task.steps_an_epoch for who, times in seconds.items()}
    own = least["caffelite, bfloat16"]
    rows = [[who, f"{us:,.0f}", f"{us / own:.2f}", f"{losses[who]:.5f}"] for who, us in least.items()]
    print(f"\n{net}, 1 thread, {timed * task.steps_an_epoch:,} steps a timing\n")
    print(harness.table([name, "µs/step, least", "time, bfloat16 = 1", "loss"], rows))


def report_losses(steps):
    """Print caffelite's loss in both precisions in each tenth of so many steps; exit if they differ much at the end."""
    net = SEQUENCES["gpt"]
    of_text = TextGPT(**vars(net), rows=net.batch * -(-steps // EPOCHS))
    task, _, _ = prepare(of_text, True, caffelite)
    task.draw_orders(EPOCHS)
    curves = [harness.Process(CONTESTANTS[who], task)(EPOCHS, True)[1] for who in ("caffelite", "caffelite, bfloat16")]
    rows = [
        [f"{(epoch + 1) * task.steps_an_epoch:,}", f"{a:.4f}", f"{b:.4f}", f"{b - a:+.4f}"]
        for epoch, (a, b) in enumerate(zip(*curves, strict=True))
    ]
    print(f"\n{net}, on a text: losses, means since the row before\n")
    print(harness.table(["steps", "float32", "bfloat16", "difference"], rows))
    if not abs(curves[0][-1] - curves[1][-1]) <= TOLERANCE:
        raise SystemExit(f"after {steps:,} steps the losses differ by more than {TOLERANCE}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=NETS, default=list(NETS), metavar="NAME",
                        help=f"these nets, of {', '.join(NETS)}")  # fmt: skip
    parser.add_argument("--rounds", type=int, default=10, help="how often each is timed (10)")
    parser.add_argument("--quick", action="store_true", help="2 short rounds: a smoke test, not a measurement")
    parser.add_argument("--loss-after", type=int, metavar="N", help="instead: the GPT's loss on a text")
    options = parser.parse_args()
    harness.use_threads(1)
    print(harness.environment("torch"))
    if options.loss_after:
        report_losses(options.loss_after)
        return
    for name in options.only:
        report_times(name, NETS[name], 2 if options.quick else options.rounds, options.quick)


if __name__ == "__main__":
    main()
