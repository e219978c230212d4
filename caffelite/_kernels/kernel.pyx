"""Kernel: the facts that hold for every call of one numeric computation.

Borders make their calls from it. Passes, threads, the profile and tests read it.
"""

# All kernels by name. `use_loops` gives each kernel its loops for the instruction set in use.
KERNELS = {}


cdef class Kernel:
    """The facts about a kernel.

    Parameters
    ----------
    name : str
        Its name in `caffelite._kernels` and in listings of a Program.
    loops : str, optional
        The name under which its loops are published, if it is not `name`.
    op : Op
        The operation of the elementwise loop for this kernel: y[i] depends only on x[i]. So the kernel can be the
        epilogue of a product.
    writes, updates : int
        Bit i of `writes`: the kernel writes operand i. Bit i of `updates`: it also reads the old values.
    checked : int
        The operand whose values make a call stop the step; −1 if no call stops a step.
    work : float
        How long one element takes, in operations of a matrix product. The binding says which elements count.
    is_product : bool
        The kernel is the matrix product, which takes an epilogue.
    takes_epilogue : bool
        An elementwise call can be fused into the kernel, which applies it to each piece of output that it has computed.
        All its operands have the output's memory layout (`apply_epilogue` in loops/elementwise.pxd).
    """

    def __cinit__(self, str name, *, str loops=None, Op op=NOTHING, int writes=1, int updates=0, int checked=-1,
                  double work=0, bint is_product=False, bint takes_epilogue=False):
        self.name, self.loops, self.op = name, loops or ("elementwise" if op else name), op
        self.writes, self.updates, self.checked = writes, updates, checked
        self.work, self.is_product, self.takes_epilogue = work, is_product, takes_epilogue
        KERNELS[name] = self

    @property
    def may_stop(self):
        """Return whether a call may stop the step."""
        return self.checked >= 0

    def __repr__(self):
        return f"Kernel({self.name!r})"


def use_loops(dict published):
    """Set the loops of all kernels. Raise KeyError, and change nothing, if a kernel's name is not in `published`."""
    cdef Kernel kernel
    cdef int i
    pairs = [(kernel, published[kernel.loops]) for kernel in KERNELS.values()]
    for kernel, addresses in pairs:
        for i in range(3):
            kernel.loop[i] = <Loop> <Py_ssize_t> addresses[i % len(addresses)]
