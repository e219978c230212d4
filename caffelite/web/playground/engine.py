"""Engine: trains the chosen net, by `Model.fit`, on a thread of its own.

A callback, the Player, plays, pauses and takes steps. So the program that `code.py` writes gives the same numbers.
"""

from __future__ import annotations

import threading

import caffelite as cl
from caffelite.optimizers import TrainingDiverged
from caffelite.web.playground.code import made
from caffelite.web.playground.config import Setting
from caffelite.web.playground.player import Player
from caffelite.web.playground.requests import Abandoned, Show, Wishes

MOST_EPOCHS = 10**7


class Engine(Wishes):
    """Trains a Setting as it is wished."""

    def __init__(self, setting: Setting, show: Show) -> None:
        super().__init__(setting, show)
        self._thread = threading.Thread(target=self._work, daemon=True, name="caffelite.playground")
        self._thread.start()

    def stop(self) -> None:
        """End for good."""
        with self._changed:
            self.ended = self._anew = True
            self._changed.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=5)

    # ---- the thread ---------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while not self.ended:
            with self._changed:
                self._anew, self.steps, self.problem, self.followed = False, 0, None, None
                self._asked.clear()
                setting = self.setting
            try:
                self._train(setting)
                self._wait_after("The rate has fallen to 0: the training has ended.")
            except Abandoned:
                continue
            except TrainingDiverged as error:
                self._wait_after(f"The training has diverged: {error}. Take a lower rate.")
            except Exception as error:
                self._wait_after(str(error))

    def _train(self, setting: Setting) -> None:
        names = made(setting)
        self.player = Player(self, setting, names)
        names["model"].fit(
            names["x"],
            names["y"],
            loss=getattr(cl, setting.loss)(),
            optimizer=names["optimizer"],
            epochs=MOST_EPOCHS if setting.schedule == "constant" else setting.epochs,
            batch_size=setting.batch_size,
            validation_data=names["held_out"],
            metrics=[setting.metric],
            callbacks=[self.player],
            verbose=0,
        )

    def _wait_after(self, problem: str) -> None:
        """Say what went wrong, and wait for another setting."""
        self.problem, self.playing = problem, False
        self.show("frame", self.player.frame())
        with self._changed:
            while not self._anew:
                self._changed.wait()
                self._asked.clear()  # there is no next step
                if self._due:
                    self._due, self.playing = False, False
                    self.show("frame", self.player.frame())
