"""Kernel: what is true of every call of one numeric computation, said once.

Borders make their calls from it; passes, threads, the profile and tests read it.
"""

# All kernels by name. `use_loops` gives each its loops, those of the instruction set in use.
KERNELS = {}


cdef class Kernel:
    """The facts about a kernel.

    Parameters
    ----------
    name : str
        As it is called in `caffelite._kernels`, and in listings of a Program.
    loops : str, optional
        The name under which its loops are published, if not its own.
    op : Op
        What it has the elementwise loop compute: y[i] depends on no other elements than x[i]. So it can be the
        epilogue of a product.
    writes, updates : int
        Bit i: operand i is written; it is read before that, too.
    checked : int
        The operand in whose values the reason lies when a call stops the step; −1 if none can.
    work : float
        How long one element (the border says of what) takes, in operations of a matrix product.
    is_product : bool
        It is the matrix product, and takes an epilogue.
    takes_epilogue : bool
        It goes on with an elementwise kernel, if it is told so, on each run of its output that it has computed; all
        operands of that one lie as the output does (`finish` in loops/elementwise.pxd).
    """

    def __cinit__(self, str name, *, str loops=None, Op op=NOTHING, int writes=1, int updates=0, int checked=-1,
                  double work=0, bint is_product=False, bint takes_epilogue=False):
        self.name, self.loops, self.op = name, loops or ("elementwise" if op else name), op
        self.writes, self.updates, self.checked = writes, updates, checked
        self.work, self.is_product, self.takes_epilogue = work, is_product, takes_epilogue
        KERNELS[name] = self

    @property
    def may_stop(self):
        """Whether a call may stop the step."""
        return self.checked >= 0

    def __repr__(self):
        return f"Kernel({self.name!r})"


def use_loops(dict published):
    """Have all kernels run these loops, addresses by name; KeyError for a kernel without, before any has changed."""
    cdef Kernel kernel
    cdef int i
    found = [(kernel, published[kernel.loops]) for kernel in KERNELS.values()]
    for kernel, addresses in found:
        for i in range(3):
            kernel.loop[i] = <Loop> <Py_ssize_t> addresses[i % len(addresses)]
