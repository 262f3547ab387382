"""Calls of compiled CPU kernels, and lists of them run by one call.

A kernel is a list of phases, each a C function
`void phase(void **buffers, const uint64_t *variables, void *scratch_of_thread,
void *scratch_shared, int64_t begin, int64_t end)` that does the steps begin..end-1 of its count.
A phase begins when the one before it has ended. Its steps are cut into as many equal parts as
there are threads (OpenMP, static), so what a step computes does not depend on how many there are.

It all runs in the calling thread where there is one step, one thread, a kernel that is not
`parallel`, no OpenMP in the build, or a process that was forked: OpenMP's threads do not survive
a fork, and the child would wait for them for ever. OpenMP rather than threads of our own because
PyTorch has it too: both find one libgomp by its name, and take turns instead of fighting for cores.
"""

cimport cython
from cpython.float cimport PyFloat_AsDouble
from libc.stdint cimport int64_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memmove, memset

from tiny._core.memory cimport HostMemory, allocate
from tiny._core.memory import copy_memory
from tiny._core.settings cimport settings
from tiny.helpers import NUM_CPU_THREADS

cdef extern from *:
    """
    /* `work(me, team, of_what)` in each of up to `threads` threads; they all meet at barriers. */
    #ifdef _OPENMP
    #include <omp.h>
    #define TINY_HAS_OPENMP 1
    static void tiny_in_threads(int threads, void (*work)(int, int, void *), void *of_what) {
        #pragma omp parallel num_threads(threads)
        work(omp_get_thread_num(), omp_get_num_threads(), of_what);
    }
    #else
    #define TINY_HAS_OPENMP 0
    static void tiny_in_threads(int threads, void (*work)(int, int, void *), void *of_what) {
        (void)threads;
        work(0, 1, of_what);
    }
    #endif

    /* Where the threads of a call meet. One that waits spins first, so that meetings of threads
       that run cost no more than a cache line on its way; then it gives its processor away, since
       the thread that it waits for may want just this one; and if that takes long, it sleeps. */
    typedef struct { int arrived; char apart[60]; int round; int sleeping; char end[56]; } tiny_meeting;
    #if defined(_OPENMP) && (defined(__GNUC__) || defined(__clang__)) && !defined(_WIN32)
    #include <sched.h>
    #ifdef __linux__
    #include <linux/futex.h>
    #include <sys/syscall.h>
    #include <unistd.h>
    #endif
    #define TINY_SPINS 200     /* a few µs */
    #define TINY_YIELDS 4000   /* a millisecond, where nobody else wants the processor */
    static void tiny_pause(void) {
    #if defined(__x86_64__) || defined(__i386__)
        __builtin_ia32_pause();
    #endif
    }
    static void tiny_meet(tiny_meeting *at, int team) {
        int turn, round = __atomic_load_n(&at->round, __ATOMIC_ACQUIRE);
        if (__atomic_add_fetch(&at->arrived, 1, __ATOMIC_ACQ_REL) == team) {
            __atomic_store_n(&at->arrived, 0, __ATOMIC_RELAXED);
            __atomic_store_n(&at->round, round + 1, __ATOMIC_SEQ_CST);
    #ifdef __linux__
            if (__atomic_load_n(&at->sleeping, __ATOMIC_SEQ_CST))
                syscall(SYS_futex, &at->round, FUTEX_WAKE_PRIVATE, 0x7fffffff, NULL, NULL, 0);
    #endif
            return;
        }
        for (turn = 0; __atomic_load_n(&at->round, __ATOMIC_ACQUIRE) == round; ++turn) {
            if (turn < TINY_SPINS) {
                tiny_pause();
                continue;
            }
    #ifdef __linux__
            if (turn > TINY_SPINS + TINY_YIELDS) {
                __atomic_add_fetch(&at->sleeping, 1, __ATOMIC_SEQ_CST);
                while (__atomic_load_n(&at->round, __ATOMIC_SEQ_CST) == round)
                    syscall(SYS_futex, &at->round, FUTEX_WAIT_PRIVATE, round, NULL, NULL, 0);
                __atomic_sub_fetch(&at->sleeping, 1, __ATOMIC_SEQ_CST);
                return;
            }
    #endif
            sched_yield();
        }
    }
    #elif defined(_OPENMP)
    static void tiny_meet(tiny_meeting *at, int team) {
        (void)at; (void)team;
        #pragma omp barrier
    }
    #else
    static void tiny_meet(tiny_meeting *at, int team) { (void)at; (void)team; }
    #endif

    static volatile int tiny_is_forked = 0;

    #ifdef _WIN32
    #define NOMINMAX
    #include <windows.h>
    static int tiny_watch_forks(void) { return 0; }
    static double tiny_seconds(void) {
        LARGE_INTEGER ticks, frequency;
        QueryPerformanceCounter(&ticks);
        QueryPerformanceFrequency(&frequency);
        return (double)ticks.QuadPart / (double)frequency.QuadPart;
    }
    #else
    #include <pthread.h>
    #include <time.h>
    static void tiny_forked(void) { tiny_is_forked = 1; }
    static int tiny_watch_forks(void) { return pthread_atfork(NULL, NULL, tiny_forked); }
    static double tiny_seconds(void) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    }
    #endif

    """
    const bint has_openmp "TINY_HAS_OPENMP"
    void in_threads "tiny_in_threads"(
        int, void (*)(int, int, void *) noexcept nogil, void *
    ) noexcept nogil
    ctypedef struct tiny_meeting:
        pass
    void meet "tiny_meet"(tiny_meeting *, int) noexcept nogil
    const bint is_forked "tiny_is_forked"
    int watch_forks "tiny_watch_forks"() nogil
    double seconds_now "tiny_seconds"() noexcept nogil

cdef extern from "Python.h":
    unsigned long long PyLong_AsUnsignedLongLongMask(object) except? 0xFFFFFFFFFFFFFFFF

ctypedef void (*phase_t)(void **, const uint64_t *, void *, void *, int64_t, int64_t) noexcept nogil

cdef enum:
    ON_STACK = 64  # as many buffers and variables are passed without an allocation
    PAGE = 4096
    MOST_SCRATCH_KEPT = 16  # pieces of scratch memory that no call uses
    MOST_SCRATCH_NBYTES = 256 << 20  # of all of those

HAS_OPENMP = bool(has_openmp)

if watch_forks() != 0:
    raise MemoryError("no memory to be told of forks")


def publish(settings) -> None:
    """Set attributes, or items of dicts, that (object, name, value) say, all or none.

    Without a name the object is called, and what it returns is appended to the value, a list. No
    Python code comes between them, if the attributes are slots and what is called is native.
    """
    _publish(settings if type(settings) is list else list(settings))


cdef int _publish(list settings) except -1:
    cdef object to, name, value
    for to, name, value in settings:
        if name is None:
            (<list?>value).append(to())
        elif type(to) is dict:
            (<dict>to)[name] = value
        else:
            setattr(to, name, value)
    return 0


# ---------------------------------------------------------------- threads and their scratch memory


def threads() -> int:
    """How many threads a kernel started now may use: NUM_CPU_THREADS, or 1 where none can help."""
    return _most_threads()


def set_threads(n: int) -> None:
    """Let kernels use `n` threads from now on; in a `Context` of NUM_CPU_THREADS, within it."""
    if n < 1:
        raise ValueError(f"kernels need a thread to run in, got {n}; give 1 or more")
    NUM_CPU_THREADS.value = n


cdef int _most_threads() except -1:
    return settings().threads if has_openmp and not is_forked else 1


cdef struct _Scratch:
    void *c_raw
    char *c_data   # 64-byte aligned
    size_t nbytes


# Pieces that no call uses, the last used on top. They are taken and given back with the GIL held,
# so that calls of several Python threads have a piece each.
cdef _Scratch c_kept[MOST_SCRATCH_KEPT]
cdef int kept = 0
cdef size_t kept_nbytes = 0


cdef int _take_scratch(_Scratch *scratch, size_t nbytes) except -1:
    """Memory of at least `nbytes` for one call."""
    global kept, kept_nbytes
    scratch.c_raw, scratch.c_data, scratch.nbytes = NULL, NULL, 0
    if not nbytes:
        return 0
    while kept:
        kept -= 1
        scratch[0] = c_kept[kept]
        kept_nbytes -= scratch.nbytes
        if scratch.nbytes >= nbytes:
            return 0
        free(scratch.c_raw)  # outgrown: so all come to be as large as the largest that is needed
    scratch.nbytes = nbytes
    scratch.c_data = allocate(nbytes, &scratch.c_raw)
    if scratch.c_data == NULL and free_memory is not None:
        free_memory()
        scratch.c_data = allocate(nbytes, &scratch.c_raw)
    if scratch.c_data == NULL:
        raise MemoryError(f"could not allocate {nbytes} bytes of scratch memory")
    return 0


cdef object free_memory = None


def when_memory_is_short(function) -> None:
    """Call a function when there is no scratch memory; then it is tried once more."""
    global free_memory
    free_memory = function


cdef void _give_back_scratch(_Scratch *scratch) noexcept:
    global kept, kept_nbytes
    if scratch.c_raw == NULL:
        return
    if kept < MOST_SCRATCH_KEPT and scratch.nbytes <= MOST_SCRATCH_NBYTES - kept_nbytes:
        c_kept[kept] = scratch[0]
        kept += 1
        kept_nbytes += scratch.nbytes
    else:
        free(scratch.c_raw)


def release_scratch() -> None:
    """Give the scratch memory that no kernel uses now back to the system."""
    global kept, kept_nbytes
    while kept:
        kept -= 1
        free(c_kept[kept].c_raw)
    kept_nbytes = 0


# ---------------------------------------------------------------- running phases


cdef struct _Phase:
    phase_t function
    int64_t count


cdef struct _Step:
    const _Phase *c_phases  # NULL for a copy, which is one phase
    Py_ssize_t phase_count
    bint parallel
    Py_ssize_t first        # of its buffers in the table of arguments; its variables follow
    Py_ssize_t buffers
    size_t nbytes           # of a copy


cdef struct _Part:
    Py_ssize_t whole   # the slot that it is a part of
    Py_ssize_t offset  # in bytes


cdef struct _Call:
    const _Step *c_steps
    Py_ssize_t step_count
    uint64_t *c_table       # the arguments of all steps
    char *c_scratch         # of the first thread
    size_t stride           # from there to that of the next
    char *c_shared
    double *c_seconds       # of each step; NULL if nobody asks
    tiny_meeting meeting    # of the threads


cdef int _run(_Call *call, int64_t widest, size_t scratch_nbytes, size_t shared_nbytes) except -1:
    """Run the steps of a call, without the GIL, in as many threads as are of use."""
    cdef int most = 1 if widest == 1 else <int>min(<int64_t>_most_threads(), widest)
    cdef _Scratch scratch
    call.stride = (scratch_nbytes + PAGE - 1) // PAGE * PAGE  # threads share no page
    _take_scratch(&scratch, most * call.stride + shared_nbytes)
    call.c_scratch = scratch.c_data
    call.c_shared = scratch.c_data + most * call.stride
    with nogil:
        if most == 1:
            _work(0, 1, call)
        else:
            # one region for all steps: to meet between two takes 0.3 µs, a region each 1.2
            memset(&call.meeting, 0, sizeof(tiny_meeting))
            in_threads(most, _work, call)
    _give_back_scratch(&scratch)
    return 0


cdef void _work(int me, int team, void *c_call) noexcept nogil:
    """What a thread does in a call: its parts, and as the first also what is not for all."""
    cdef _Call *call = <_Call *>c_call
    cdef const _Step *step
    cdef Py_ssize_t i, k
    cdef bint wide, was_wide = False
    cdef double now, start = seconds_now() if call.c_seconds != NULL else 0
    for i in range(call.step_count):
        step = &call.c_steps[i]
        for k in range(step.phase_count):
            wide = team > 1 and step.parallel and step.c_phases[k].count > 1
            # what only the first thread does in a row is in order anyway
            if was_wide or (wide and (i or k)):
                meet(&call.meeting, team)
            was_wide = wide
            if wide:
                _run_part(call, step, &step.c_phases[k], me, team)
            elif me == 0:
                _run_alone(call, step, k)
        if call.c_seconds != NULL:
            if was_wide:
                meet(&call.meeting, team)
                was_wide = False
            if me == 0:
                now = seconds_now()
                call.c_seconds[i], start = now - start, now


cdef void _run_part(
    _Call *call, const _Step *step, const _Phase *phase, int me, int team
) noexcept nogil:
    cdef uint64_t *table = call.c_table + step.first
    # the first threads have a step more; count * me could overflow
    cdef int64_t each = phase.count // team, more = phase.count % team
    cdef int64_t begin = me * each + min(<int64_t>me, more)
    cdef int64_t end = begin + each + (me < more)
    if begin < end:
        phase.function(
            <void **>table, table + step.buffers, call.c_scratch + me * call.stride,
            call.c_shared, begin, end,
        )


cdef void _run_alone(_Call *call, const _Step *step, Py_ssize_t k) noexcept nogil:
    cdef uint64_t *table = call.c_table + step.first
    cdef void **buffers = <void **>table
    if step.c_phases == NULL:
        memmove(buffers[0], buffers[1], step.nbytes)
    else:
        step.c_phases[k].function(
            buffers, table + step.buffers, call.c_scratch, call.c_shared,
            0, step.c_phases[k].count,
        )


# ---------------------------------------------------------------- kernels


cdef union _Slot:
    uint64_t bits
    double float64
    float float32


cdef int _convert(_Slot *slot, char kind, object value) except -1:
    """A variable as kernels read it."""
    slot.bits = 0
    if kind == b"i":
        slot.bits = PyLong_AsUnsignedLongLongMask(value)
    elif kind == b"d":
        slot.float64 = PyFloat_AsDouble(value)
    elif kind == b"f":
        slot.float32 = <float>PyFloat_AsDouble(value)
    return 0


@cython.final
cdef class HostKernel:
    """A compiled kernel, called with the memory of its buffers and the values of its variables.

    `phases` are (address, count) in order. `kinds` has a byte for each variable: i for integers
    (they wrap to 64 bits), f for float32, d for float64. `written` has a byte for each buffer, 0 for
    one that is only read; without it all are written. `code` is what keeps the machine code
    loaded; it is let go of with the kernel. Each thread gets `scratch_nbytes` of memory of its own
    and all together `shared_nbytes`, aligned to 64 bytes, with anything in it. If not `parallel`,
    one thread does all the steps. Threads are started for kernels that are `worth` 1 together, or
    more. Several threads may call it at once. A call returns when all is
    done. TypeError if the arguments are not as declared.
    """

    cdef readonly str name
    cdef readonly tuple phases
    cdef readonly Py_ssize_t buffers
    cdef readonly bytes kinds
    cdef readonly size_t scratch_nbytes
    cdef readonly size_t shared_nbytes
    cdef readonly bint parallel
    cdef readonly double worth
    cdef readonly bytes written
    cdef object code
    cdef _Phase *c_phases
    cdef _Step step
    cdef int64_t widest  # how many threads can be of use

    def __cinit__(
        self, str name, tuple phases, Py_ssize_t buffers, bytes kinds, object code,
        Py_ssize_t scratch_nbytes=0, Py_ssize_t shared_nbytes=0, bint parallel=True,
        bytes written=None, double worth=1,
    ):
        if kinds.strip(b"ifd"):
            raise ValueError(f"kinds of variables are i, f and d, got {kinds!r}")
        if buffers < 0 or scratch_nbytes < 0 or shared_nbytes < 0:
            raise ValueError(
                f"kernel {name}: {buffers} buffers, {scratch_nbytes} and {shared_nbytes} bytes of "
                "scratch memory; none can be negative"
            )
        self.name, self.phases, self.buffers, self.kinds = name, phases, buffers, kinds
        self.scratch_nbytes, self.shared_nbytes = scratch_nbytes, shared_nbytes
        self.parallel, self.code, self.worth = parallel, code, worth
        self.written = b"\1" * buffers if written is None else written
        if len(self.written) != buffers:
            raise ValueError(
                f"kernel {name}: {len(self.written)} bytes say which of {buffers} buffers are written"
            )
        self.widest = 1
        self.c_phases = <_Phase *>_zeros(len(phases) * sizeof(_Phase))
        self.step.c_phases, self.step.phase_count = self.c_phases, len(phases)
        self.step.parallel, self.step.buffers = parallel, buffers
        for k, (address, count) in enumerate(phases):
            if not address or count < 1:
                raise ValueError(f"kernel {name}: no function at {address}, or no step: {count}")
            self.c_phases[k].function = <phase_t><uintptr_t>address
            self.c_phases[k].count = count
            if parallel:
                self.widest = max(self.widest, self.c_phases[k].count)

    def __dealloc__(self):
        free(self.c_phases)

    def __call__(self, tuple buffers, tuple variables=()):
        cdef Py_ssize_t n = len(buffers), m = len(variables)
        if n != self.buffers or m != len(self.kinds):
            raise TypeError(
                f"kernel {self.name} takes {self.buffers} buffers and {len(self.kinds)} variables, "
                f"got {n} and {m}"
            )
        cdef uint64_t on_stack[2 * ON_STACK]
        cdef uint64_t *table = on_stack
        if n > ON_STACK or m > ON_STACK:
            table = <uint64_t *>malloc((n + m) * sizeof(uint64_t))
            if table == NULL:
                raise MemoryError(f"could not allocate the {n + m} arguments of {self.name}")
        cdef const char *kinds = self.kinds
        cdef const char *written = self.written
        cdef Py_ssize_t i
        cdef _Call call
        call.c_steps, call.step_count, call.c_table = &self.step, 1, table
        call.c_seconds = NULL
        try:
            for i in range(n):
                table[i] = <uint64_t><uintptr_t>(<HostMemory?>buffers[i]).c_data
                if written[i]:
                    (<HostMemory>buffers[i]).changed()
            for i in range(m):
                _convert(<_Slot *>&table[n + i], kinds[i], variables[i])
            _run(&call, self.widest if self.worth >= 1 else 1, self.scratch_nbytes, self.shared_nbytes)
            for i in range(n):
                if written[i]:
                    (<HostMemory>buffers[i]).changed()
        finally:
            if table != on_stack:
                free(table)


@cython.final
cdef class HostCopy:
    """Copies `nbytes` from the start of its second buffer to that of its first, as a kernel would.

    ValueError if they do not fit, or if the first is read-only.
    """

    cdef readonly Py_ssize_t nbytes

    def __cinit__(self, Py_ssize_t nbytes):
        if nbytes < 0:
            raise ValueError(f"{nbytes} bytes cannot be copied")
        self.nbytes = nbytes

    def __call__(self, tuple buffers, tuple variables=()):
        if len(buffers) != 2 or len(variables) != 0:
            raise TypeError(
                f"a copy takes 2 buffers and no variables, got {len(buffers)} and {len(variables)}"
            )
        copy_memory(<HostMemory?>buffers[0], <HostMemory?>buffers[1], self.nbytes)


# ---------------------------------------------------------------- replay


@cython.final
cdef class HostReplay:
    """Kernels and copies run in order by one call, without Python between them.

    A step is (HostKernel or HostCopy, slots, numbers): its k-th buffer is `memory[slots[k]]` of a
    call, its k-th variable `values[numbers[k]]`. `slots` and `variables` say how many there are.
    Slots beyond these are `parts` of them, (slot, offset, nbytes) each.
    ValueError if a step does not fit together, or uses one variable as another kind than the
    others do. Several threads may call it at once. With `times` a call returns the seconds that
    each step took. TypeError if the arguments are not as declared; ValueError if parts or copies
    do not fit into the memory given, before anything has run.

    `settings` are published (see `publish`) when all steps have run: no signal's handler, and
    nothing else, can raise between the one and the other.
    """

    cdef readonly tuple steps
    cdef readonly tuple parts
    cdef readonly Py_ssize_t slots
    cdef readonly Py_ssize_t variables
    cdef _Step *c_steps
    cdef Py_ssize_t step_count
    cdef Py_ssize_t *c_sources   # of each argument of each step: a slot, or all slots + a number
    cdef Py_ssize_t arguments
    cdef _Part *c_parts
    cdef Py_ssize_t part_count
    cdef Py_ssize_t *c_least     # bytes that each slot must have for its copies and parts
    cdef char *c_written         # whether copies write to each slot
    cdef char *c_changed         # whether any step does
    cdef char *c_kinds           # of each variable; 0 if no step uses it
    cdef int64_t widest
    cdef double worth            # of its kernels together
    cdef size_t scratch_nbytes
    cdef size_t shared_nbytes

    def __cinit__(self, steps, Py_ssize_t slots, Py_ssize_t variables=0, parts=()):
        if slots < 0 or variables < 0:
            raise ValueError(f"there cannot be {slots} slots and {variables} variables")
        self.steps, self.slots, self.variables = tuple(steps), slots, variables
        self.parts = tuple(parts)
        self.step_count, self.widest, self.part_count = len(self.steps), 1, len(self.parts)
        for number, step in enumerate(self.steps):
            self._check(number, step)
            self.arguments += len(step[1]) + len(step[2])
        self.c_steps = <_Step *>_zeros(self.step_count * sizeof(_Step))
        self.c_sources = <Py_ssize_t *>_zeros(self.arguments * sizeof(Py_ssize_t))
        self.c_least = <Py_ssize_t *>_zeros(slots * sizeof(Py_ssize_t))
        self.c_written = <char *>_zeros(slots)
        self.c_changed = <char *>_zeros(slots)
        self.c_kinds = <char *>_zeros(variables)
        self.c_parts = <_Part *>_zeros(self.part_count * sizeof(_Part))
        for number, (whole, offset, nbytes) in enumerate(self.parts):
            self._add_part(number, whole, offset, nbytes)
        cdef Py_ssize_t first = 0
        for number, (what, its_slots, numbers) in enumerate(self.steps):
            self.c_steps[number].first = first
            for slot in its_slots:
                self.c_sources[first] = slot
                first += 1
            for variable in numbers:
                self.c_sources[first] = slots + self.part_count + <Py_ssize_t>variable
                first += 1
            if isinstance(what, HostKernel):
                self._add_kernel(number, what, its_slots, numbers)
            else:
                self._add_copy(number, what, its_slots)
        if self.worth < 1:
            self.widest = 1

    def __dealloc__(self):
        free(self.c_steps)
        free(self.c_sources)
        free(self.c_least)
        free(self.c_written)
        free(self.c_changed)
        free(self.c_kinds)
        free(self.c_parts)

    cdef int _check(self, Py_ssize_t number, object step) except -1:
        """ValueError or TypeError if a step cannot be run."""
        cdef Py_ssize_t buffers = 2, values = 0
        what, slots, numbers = step
        if isinstance(what, HostKernel):
            buffers, values = (<HostKernel>what).buffers, len((<HostKernel>what).kinds)
        elif not isinstance(what, HostCopy):
            raise TypeError(f"step {number} is no HostKernel or HostCopy but {type(what).__name__}")
        if len(slots) != buffers or len(numbers) != values:
            raise ValueError(
                f"step {number} ({_name(what)}) takes {buffers} buffers and {values} variables, "
                f"got {len(slots)} slots and {len(numbers)} numbers"
            )
        for names, given, most in (
            ("slots", slots, self.slots + self.part_count), ("variables", numbers, self.variables)
        ):
            for k in given:
                if not 0 <= k < most:
                    raise ValueError(
                        f"step {number} ({_name(what)}) names {k} of {names}, there are {most}"
                    )
        return 0

    cdef int _add_kernel(
        self, Py_ssize_t number, HostKernel kernel, its_slots, numbers
    ) except -1:
        cdef char kind
        cdef Py_ssize_t first = self.c_steps[number].first, slot, k
        for k, slot in enumerate(its_slots):
            if kernel.written[k]:
                self.c_changed[self._whole(slot)] = 1
        self.c_steps[number] = kernel.step
        self.c_steps[number].first = first
        self.widest = max(self.widest, kernel.widest)
        self.worth += kernel.worth if kernel.parallel else 0
        self.scratch_nbytes = max(self.scratch_nbytes, kernel.scratch_nbytes)
        self.shared_nbytes = max(self.shared_nbytes, kernel.shared_nbytes)
        for k, variable in enumerate(numbers):
            kind = kernel.kinds[<Py_ssize_t>k]
            if self.c_kinds[<Py_ssize_t>variable] not in (0, kind):
                raise ValueError(
                    f"step {number} ({kernel.name}) takes variable {variable} as {chr(kind)}, an "
                    f"earlier one as {chr(self.c_kinds[<Py_ssize_t>variable])}; give it two numbers"
                )
            self.c_kinds[<Py_ssize_t>variable] = kind
        return 0

    cdef Py_ssize_t _whole(self, Py_ssize_t slot):
        """The slot given in a call that this is, or is a part of."""
        return slot if slot < self.slots else self.c_parts[slot - self.slots].whole

    cdef int _add_copy(self, Py_ssize_t number, HostCopy copy, its_slots) except -1:
        cdef Py_ssize_t slot, whole, before, k
        self.c_changed[self._whole(its_slots[0])] = 1
        self.c_steps[number].phase_count, self.c_steps[number].nbytes = 1, copy.nbytes
        for k, slot in enumerate(its_slots):
            whole, before = slot, 0
            if slot >= self.slots:
                whole = self.c_parts[slot - self.slots].whole
                before = self.c_parts[slot - self.slots].offset
                if copy.nbytes > self.parts[slot - self.slots][2]:
                    raise ValueError(
                        f"step {number} copies {copy.nbytes} bytes, slot {slot} is a part of "
                        f"{self.parts[slot - self.slots][2]}"
                    )
            self.c_least[whole] = max(self.c_least[whole], before + copy.nbytes)
            self.c_written[whole] = self.c_written[whole] or k == 0
        return 0

    cdef int _add_part(
        self, Py_ssize_t number, Py_ssize_t whole, Py_ssize_t offset, Py_ssize_t nbytes
    ) except -1:
        if not 0 <= whole < self.slots or offset < 0 or nbytes < 0:
            raise ValueError(
                f"part {number} would be {nbytes} bytes from {offset} on of slot {whole}; there "
                f"are {self.slots} slots"
            )
        self.c_parts[number].whole, self.c_parts[number].offset = whole, offset
        self.c_least[whole] = max(self.c_least[whole], offset + nbytes)
        return 0

    def __call__(self, tuple memory, tuple values=(), bint times=False, list settings=None):
        if len(memory) != self.slots or len(values) != self.variables:
            raise TypeError(
                f"a replay of {self.slots} slots and {self.variables} variables got "
                f"{len(memory)} and {len(values)}"
            )
        cdef size_t given = self.slots + self.part_count + self.variables
        cdef size_t cells = given + self.arguments
        cdef uint64_t *table = <uint64_t *>malloc(
            (cells + 1) * sizeof(uint64_t) + self.step_count * sizeof(double) * times
        )
        if table == NULL:
            raise MemoryError(f"could not allocate the {cells} arguments of a replay")
        cdef _Call call
        cdef Py_ssize_t i
        call.c_steps, call.step_count, call.c_table = self.c_steps, self.step_count, table + given
        call.c_seconds = <double *>(table + cells + 1) if times else NULL
        try:
            self._read(table, memory, values)
            for i in range(self.arguments):
                table[given + i] = table[self.c_sources[i]]
            _run(&call, self.widest, self.scratch_nbytes, self.shared_nbytes)
            for i in range(self.slots):
                if self.c_changed[i]:
                    (<HostMemory>memory[i]).changed()
            if settings is not None:
                _publish(settings)
            return [call.c_seconds[i] for i in range(self.step_count)] if times else None
        finally:
            free(table)

    cdef int _read(self, uint64_t *given, tuple memory, tuple values) except -1:
        """The addresses of all slots and the bits of all values."""
        cdef Py_ssize_t i
        cdef HostMemory piece
        for i in range(self.slots):
            piece = <HostMemory?>memory[i]
            if piece.nbytes < self.c_least[i] or (self.c_written[i] and not piece.writable):
                raise ValueError(
                    f"the memory of slot {i} has {piece.nbytes} "
                    f"{'writable' if piece.writable else 'read-only'} bytes, copies and parts need "
                    f"{self.c_least[i]}{' writable ones' if self.c_written[i] else ''}"
                )
            given[i] = <uint64_t><uintptr_t>piece.c_data
            if self.c_changed[i]:
                piece.changed()
        for i in range(self.part_count):
            given[self.slots + i] = given[self.c_parts[i].whole] + self.c_parts[i].offset
        for i in range(self.variables):
            _convert(
                <_Slot *>&given[self.slots + self.part_count + i], self.c_kinds[i], values[i]
            )
        return 0


cdef str _name(what):
    return (<HostKernel>what).name if isinstance(what, HostKernel) else "copy"


cdef void *_zeros(size_t nbytes) except NULL:
    cdef void *made = calloc(nbytes + 1, 1)
    if made == NULL:
        raise MemoryError(f"could not allocate {nbytes} bytes for a replay")
    return made
