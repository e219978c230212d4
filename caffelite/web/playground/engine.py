"""Engine: trains the chosen net, by `Model.fit`, on a thread of its own.

A callback, the Player, plays, pauses and takes steps. So the program that `code.py` writes gives the same numbers.
"""

from __future__ import annotations

import threading

from caffelite.optimizers import TrainingDiverged
from caffelite.web.playground.code import build_objects
from caffelite.web.playground.config import Setting
from caffelite.web.playground.player import Player
from caffelite.web.playground.requests import RequestQueue, Show, TrainingCancelled

MAX_EPOCHS = 10**7


class Engine(RequestQueue):
    """Trains a Setting as the pages request."""

    def __init__(self, setting: Setting, show: Show) -> None:
        super().__init__(setting, show)
        self._thread = threading.Thread(target=self._run, daemon=True, name="caffelite.playground")
        self._thread.start()

    def stop(self) -> None:
        """Stop for good."""
        with self._changed:
            self.ended = self._restart = True
            self._changed.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=5)

    # ---- the thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self.ended:
            with self._changed:
                self._restart, self.steps, self.problem, self.followed_weight = False, 0, None, None
                self.has_edits = False
                self._tasks.clear()
                self.edits.clear()
                setting = self.setting
            try:
                self._train(setting)
                self._report_and_wait("The learning rate has fallen to 0, so the training has ended.")
            except TrainingCancelled:
                continue
            except TrainingDiverged as error:
                self._report_and_wait(f"The training has diverged: {error}")
            except Exception as error:
                self._report_and_wait(str(error))

    def _train(self, setting: Setting) -> None:
        objects = build_objects(setting)
        self.player = Player(self, setting, objects)
        objects["model"].fit(
            objects["x"],
            objects["y"],
            loss=objects["loss"],
            optimizer=objects["optimizer"],
            epochs=MAX_EPOCHS if setting.schedule == "constant" else setting.epochs,
            batch_size=setting.batch_size,
            validation_data=objects["held_out"],
            metrics=[setting.metric],
            callbacks=[self.player],
            verbose=0,
        )

    def _report_and_wait(self, problem: str) -> None:
        """Say what went wrong, and wait for another setting."""
        self.problem, self.playing = problem, False
        self.show("frame", self.player.frame())
        with self._changed:
            while not self._restart:
                self._changed.wait()
                self._tasks.clear()  # there is no next step
                if self._frame_due and not self._restart:
                    self._frame_due, self.playing = False, False
                    self.show("frame", self.player.frame())
