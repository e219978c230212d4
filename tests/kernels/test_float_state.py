"""Kernels leave the processor's rounding and denormal numbers as they were."""

from tests.kernels.arguments import run_python


def test_rounding_and_denormals_are_left_as_they_were_on_every_thread():
    """The control bits of MXCSR where the C library gives them; denormal arithmetic and the rounding mode anywhere."""
    run_python(
        """
        import ctypes, ctypes.util, platform, sys, threading
        import numpy as np

        libm = ctypes.CDLL(ctypes.util.find_library("m") or "ucrtbase")
        MXCSR = platform.machine() == "x86_64" and sys.platform.startswith("linux")

        def state():
            environment = (ctypes.c_uint32 * 64)()
            libm.fegetenv(environment)
            denormal = np.float32(1e-38) * np.float32(1e-3)
            third = np.float32(1) / np.float32(3)
            control = environment[7] & ~0x3F if MXCSR else None
            return libm.fegetround(), control, denormal.tobytes(), third.tobytes()

        states, imported, fitted = [], threading.Event(), threading.Event()

        def other_thread():
            states.append(state())
            imported.wait()
            states.append(state())
            fitted.wait()
            states.append(state())

        before = state()
        assert before[0] == 0 and np.frombuffer(before[2], np.float32)[0] > 0
        thread = threading.Thread(target=other_thread, daemon=True)
        thread.start()
        import caffelite as cl
        from caffelite import _kernels as kernels
        imported.set()
        states.append(state())

        def check_where_kernels_compute():  # each share of these arrays is another thread's
            for dtype, denormal, ulp in ((np.float32, 1e-38, 2.0**-23), (np.float64, 1e-308, 2.0**-52)):
                a = np.full(2_000_000, denormal, dtype)
                assert (kernels.multiply(a, 0.125) == a[0] * dtype(0.125)).all() and a[0] * dtype(0.125) > 0  # out
                assert (kernels.multiply(a, 2.0**40) == a[0] * dtype(2.0**40)).all() and a[0] * dtype(2.0**40) > 0  # in
                one = np.ones(2_000_000, dtype)
                for sign in (one, -one):
                    assert (kernels.add(sign, sign[0] * ulp * 0.25) == sign).all()
                    assert (kernels.add(sign, sign[0] * ulp * 0.75) == sign * dtype(1 + ulp)).all()

        cl.set_num_threads(4)
        assert 10 * 2_000_000 > kernels.PARALLEL_WORK
        check_where_kernels_compute()
        x, y = np.random.default_rng(0).normal(size=(256, 300)), np.arange(256) % 10
        model = cl.Model([cl.Linear(300, 200), cl.ReLU(), cl.Linear(200, 10)], seed=0)
        model.fit(x, y, loss=cl.SoftmaxLoss(), optimizer=cl.SGD(model.parameters(), lr=0.1), verbose=0, epochs=2)
        fitted.set()
        thread.join()
        states.append(state())
        assert len(states) == 5 and set(states) == {before}, (before, states)
        check_where_kernels_compute()
        """
    )
