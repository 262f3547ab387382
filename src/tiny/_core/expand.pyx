"""From a tiled kernel to lists of operations: copies of tiles, vectors of lanes, registers.

Every node is computed once for each combination of the tiles that it depends on, as a scalar or
as a vector of the lanes that it depends on, in the outermost loop that it can be in.

Method: the recipe of register tiling by outer products (Goto and van de Geijn, ACM TOMS 2008),
generalised to any graph: reduction tiles are outermost, then rows, copies of vectors innermost,
so that what is broadcast meets all its vectors at once.
"""

cimport cython
from cpython.long cimport PyLong_Check
from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free
from tiny._core cimport types
from tiny._core.args import AxisType, RangeArg, RegArg
from tiny._core.graph cimport Node, make, make1, make2, make3, make_const, make_int, postorder
from tiny._core.ops cimport *
from tiny._core.types cimport DType, coerce

cdef enum:
    WORTH_TRANSPOSING = 4  # neighbours in memory, for them to be loaded as vectors and transposed
    TRANSPOSED_BYTES = 64  # of a vector, at most
    WIDEST_STRIDE = 4  # of lanes that are taken out of vectors
    LEAST_SHUFFLED = 4  # bytes of an element that machines shuffle well

cdef object THREAD = AxisType.THREAD


# ---------------------------------------------------------------- what is known beforehand


@cython.final
cdef class Form:
    """sum(factor * term) + constant. A term is a RANGE, or a node that no sum can see into."""

    cdef int64_t constant
    cdef list terms       # nodes
    cdef list factors

    def __cinit__(self):
        self.constant = 0
        self.terms, self.factors = [], []


cdef bint is_linear(Node node):
    """Whether a node is a sum or a multiple of indices, that is, more than one term by itself."""
    if node.dtype is not types.INDEX:
        return False
    if node.c_op == OP_MUL:
        return (<Node>node.src[0]).c_op == OP_CONST or (<Node>node.src[1]).c_op == OP_CONST
    return node.c_op == OP_ADD or node.c_op == OP_SUB


cdef Form form_of(Node node):
    """An index as a linear form; its terms in order of first appearance."""
    cdef Form form = Form()
    cdef dict place = {}
    cdef list stack = [node], factors = [1]
    cdef Node x, a
    cdef int64_t factor
    cdef object at
    while stack:
        x = stack.pop()
        factor = factors.pop()
        if x.c_op == OP_CONST:
            form.constant += factor * <int64_t>x.arg
        elif not is_linear(x):
            at = place.get(x)
            if at is None:
                place[x] = len(form.terms)
                form.terms.append(x)
                form.factors.append(factor)
            else:
                form.factors[at] += factor
        elif x.c_op == OP_MUL:
            a = x.src[0]
            if a.c_op == OP_CONST:
                stack.append(x.src[1])
                factors.append(factor * a.arg)
            else:
                stack.append(a)
                factors.append(factor * (<Node>x.src[1]).arg)
        else:
            stack.append(x.src[1])
            factors.append(-factor if x.c_op == OP_SUB else factor)
            stack.append(x.src[0])
            factors.append(factor)
    if 0 in form.factors:
        kept = [k for k, f in enumerate(form.factors) if f]
        form.terms = [form.terms[k] for k in kept]
        form.factors = [form.factors[k] for k in kept]
    return form


@cython.final
cdef class Info:
    """What is known of a node before anything is expanded.

    `mask`: the axes that it depends on, with the number `mask_id` among all sets. `lane`: the one
    of them that is a vector's, -1 if none. `tiles`: the places of those that are tiles. `needs`:
    the nodes whose values its own is made of. `hoists`: the REDUCEs and STAGEs below it, a set.
    """

    cdef Py_ssize_t index
    cdef object mask
    cdef Py_ssize_t mask_id
    cdef int lane
    cdef tuple tiles
    cdef tuple needs
    cdef Form form
    cdef object hoists


@cython.final
cdef class LoopPlan:
    """A loop of the kernel; see `Loop` in codegen/lower/tiled.py, here as `given`."""

    cdef object given
    cdef int number        # of its leaf
    cdef int position      # number of the leaf that stands for where it starts, or -1
    cdef Py_ssize_t axis
    cdef int64_t step
    cdef bint is_thread
    cdef bint is_innermost
    cdef object kind
    cdef object bit
    cdef tuple needs       # see `Need` there
    cdef object head       # see `Head` there, or None
    cdef bint is_uneven    # whether iterations of others are needed or not by where it is


@cython.final
cdef class AxisPlan:
    """An axis of the kernel: sizes as they are in the loops that are open now."""

    cdef object size       # an int, or a node
    cdef bint shifts
    cdef int tile          # place of its tile among all tiles, or -1
    cdef int tile_number   # of its leaf
    cdef int64_t lanes     # 1 without a lane


@cython.final
cdef class Body:
    """One of the bodies of a loop: it runs `count` times, or once if that is None.

    `at` is what the number of the iteration is where it is not that of the loop, `size` how many
    elements of the axis an iteration has to cover. If `runs_tiles`, the loop goes over the tile
    of the axis as well, one after the other. The first iteration has the number `first`, and in
    all of them the conditions `sure` hold.
    """

    cdef Node count
    cdef object size
    cdef Node at
    cdef bint runs_tiles
    cdef Node first
    cdef set sure

    def __cinit__(
        self, Node count, object size, Node at=None, bint runs_tiles=False, Node first=None,
        set sure=None,
    ):
        self.count, self.size, self.at, self.runs_tiles = count, size, at, runs_tiles
        self.first, self.sure = first, sure


@cython.final
cdef class Scope:
    """A loop that is open (or the whole program): its operations, and the values known in it.

    `bits` are the axes whose position it sets, `places` what leaves of theirs stand for. Without
    a `range` it is a part of its parent that runs once. `axis` had `size` elements outside.
    """

    cdef object bits
    cdef Node range
    cdef dict places
    cdef list lines
    cdef dict memo
    cdef Py_ssize_t axis
    cdef object size
    cdef set sure

    def __cinit__(self, object bits=0, Node range=None):
        self.bits, self.range = bits, range
        self.places, self.lines, self.memo = {}, [], {}
        self.axis = -1


@cython.final
cdef class Accumulator:
    """One register of a reduction, for a combination of outer tiles and one of its own.

    Or of a SCAN: what it has come to, for a combination of tiles along other axes.
    """

    cdef Node value  # what it holds now


@cython.final
cdef class Sums:
    """Reductions in the same loops: their accumulators, and what is known of their tiles."""

    cdef list group
    cdef tuple own          # tiles that they reduce over
    cdef tuple separate     # those of them that have accumulators of their own
    cdef int lane           # the axis of lanes that they reduce over, or -1
    cdef list steps         # of each loop: how often it adds to a sum, tiles included
    cdef list levels        # see `SumRules.levels`
    cdef list accumulators  # for each REDUCE: {(key of outer tiles, key of separate ones): …}
    cdef list every         # (REDUCE, accumulator), all of them


@cython.final
cdef class ScanPlan:
    """What a SCAN goes along: an axis, with its tile and its lane, -1 for those there are not."""

    cdef Py_ssize_t axis
    cdef int tile          # its place among all tiles
    cdef int lane          # number of its leaf
    cdef tuple others      # the tiles of other axes
    cdef bint has_factors  # the second of its sources


@cython.final
cdef class Aside:
    """Loops that are set aside, and what holds inside of them."""

    cdef list scopes
    cdef dict homes        # of the operations in them
    cdef list sizes
    cdef list counts
    cdef dict running
    cdef set sure


# ---------------------------------------------------------------- shuffles


cdef tuple interleave(Py_ssize_t lanes, Py_ssize_t part, Py_ssize_t unit, Py_ssize_t half):
    """Units of two vectors in turn, of the first or the second half of each part."""
    cdef list found = []
    cdef Py_ssize_t start, k, first
    for start in range(0, lanes, part):
        for k in range(part // 2 // unit):
            first = start + half * part // 2 + k * unit
            found += [*range(first, first + unit), *range(lanes + first, lanes + first + unit)]
    return tuple(found)


cdef int64_t lanes_of(Node x):
    return x.c_shape[0] if x.c_shape else 1


# ---------------------------------------------------------------- the expansion


@cython.final
cdef class Expansion:
    """The expansion of one kernel: values by node and combination, known where they are placed.

    A value is remembered in the innermost open loop that its node depends on, and forgotten when
    that closes. While something is computed further out, the loops inside are set aside; what is
    in those comes later in the program, so none of it can be used until then.
    """

    cdef object rules              # see `SumRules` in codegen/lower/sums.py
    cdef list loops                # LoopPlans in nesting order
    cdef list axes                 # AxisPlans
    cdef list stores
    cdef set streamed              # memory that is stored to past the caches
    cdef list hoisted              # REDUCEs and STAGEs, sources first
    cdef object private_stages     # those of them that fill memory of the thread, a set
    cdef dict infos
    cdef dict bits                 # number of a leaf -> bit; a loop's two have one
    cdef dict leaf_of_bit
    cdef object loop_mask
    cdef object lane_mask
    cdef dict axis_of_lane         # number of a lane's leaf -> place of its axis
    cdef dict axis_of_leaf         # the same for any leaf
    cdef dict lanes_of_leaf
    cdef dict tile_place           # number of a tile's leaf -> its place
    cdef list tile_sizes
    cdef Py_ssize_t tiles
    cdef int64_t *counts           # of tiles, in the loops that are open now
    cdef int64_t *at               # the combination: a position along each tile
    cdef list masks                # sets of axes, by number
    cdef dict mask_ids
    cdef list depths               # by number of a set: its depth in the scopes as they are, or None
    cdef list scopes
    cdef dict home                 # operation -> depth of the loop it belongs to
    cdef dict running              # tiles that are gone through one by one, in loops
    cdef tuple conditions          # of loops
    cdef set sure                  # those that hold in the loops that are open now
    cdef dict fills                # STAGE -> how often it has been filled
    cdef set filled_before         # in earlier phases
    cdef dict scans                # SCAN -> ScanPlan
    cdef dict carries              # (SCAN, key of other tiles) -> Accumulator, in its loop
    cdef Py_ssize_t fresh          # for reads that are like no other
    cdef Py_ssize_t next_axis
    cdef Py_ssize_t next_register

    def __cinit__(self, object kernel, Node sink, object rules, tuple conditions):
        cdef list order = postorder(sink)
        cdef Node n
        cdef LoopPlan loop
        cdef AxisPlan axis
        cdef dict innermost = {}
        cdef Py_ssize_t k
        self.rules = rules
        self.bits, self.leaf_of_bit = {}, {}
        self.lanes_of_leaf = {}
        for n in order:
            if n.c_op == OP_RANGE:
                self.bits[n.arg[0]] = 1 << n.arg[0]
        self.loops, self.loop_mask, self.axis_of_leaf = [], 0, {}
        for given in kernel.loops:
            loop = LoopPlan()
            loop.given, loop.number = given, given.leaf.arg[0]
            loop.position = -1 if given.position is None else given.position.arg[0]
            loop.axis, loop.step, loop.is_thread = given.axis, given.step, given.is_thread
            loop.kind, loop.bit = given.leaf.arg[1], (<object>1) << loop.number
            loop.needs, loop.head = given.needs, given.head
            self.loops.append(loop)
            self.loop_mask |= loop.bit
            self.bits[loop.number] = loop.bit
            self.axis_of_leaf[loop.number] = loop.axis
            if loop.position >= 0:
                self.bits[loop.position] = loop.bit
                self.axis_of_leaf[loop.position] = loop.axis
            if loop.axis not in innermost or loop.step < (<LoopPlan>innermost[loop.axis]).step:
                innermost[loop.axis] = loop
        for loop in innermost.values():
            loop.is_innermost = True
        numbers = {leaf.arg[0] for loop in self.loops for need in loop.needs for leaf, *_ in need.others}
        for loop in self.loops:
            loop.is_uneven = loop.number in numbers or loop.position in numbers
        self.tiles = len(kernel.tiles)
        self.tile_sizes = [t.src[0].arg for t in kernel.tiles]
        self.tile_place = {t.arg[0]: k for k, t in enumerate(kernel.tiles)}
        self.counts = <int64_t *>calloc(self.tiles + 1, sizeof(int64_t))
        self.at = <int64_t *>calloc(self.tiles + 1, sizeof(int64_t))
        if self.counts == NULL or self.at == NULL:
            raise MemoryError(f"no memory for {self.tiles} tiles")
        for k in range(self.tiles):
            self.counts[k] = self.tile_sizes[k]
        self.axes, self.axis_of_lane, self.lane_mask = [], {}, 0
        for k, given in enumerate(kernel.axes):
            axis = AxisPlan()
            axis.size, axis.shifts, axis.tile, axis.lanes = given.size, given.shifts, -1, 1
            if given.tile is not None:
                axis.tile_number = given.tile.arg[0]
                axis.tile = self.tile_place[axis.tile_number]
                self.axis_of_leaf[axis.tile_number] = k
            if given.lane is not None:
                axis.lanes = given.lane.src[0].arg
                self.axis_of_lane[given.lane.arg[0]] = self.axis_of_leaf[given.lane.arg[0]] = k
                self.lanes_of_leaf[given.lane.arg[0]] = axis.lanes
                self.lane_mask |= 1 << given.lane.arg[0]
            self.axes.append(axis)
            self.count_tiles(axis)
        self.stores = list(sink.src)
        self.streamed = {s.src[0].src[0] for s in sink.src if s.arg == "nontemporal"}
        self.hoisted = [n for n in order if (<Node>n).c_op == OP_REDUCE or (<Node>n).c_op == OP_STAGE]
        self.private_stages = 0
        for k, n in enumerate(self.hoisted):
            if n.c_op == OP_STAGE and not n.arg[0]:
                self.private_stages |= (<object>1) << k
        self.fills, self.filled_before, self.running = {}, set(), {}
        self.conditions, self.sure = conditions, set()
        self.masks, self.mask_ids, self.depths = [], {}, []
        self.scopes, self.home = [Scope()], {}
        self.infos, self.scans, self.carries = {}, {}, {}
        self.describe(order)

    def __dealloc__(self):
        free(self.counts)
        free(self.at)

    cdef int describe(self, list order) except -1:
        cdef dict masks = {}, numbers = {n: k for k, n in enumerate(self.hoisted)}
        cdef dict tiles_of = {}
        cdef Node node, s
        cdef Info info
        cdef object mask, lane_bit, in_order = 0
        cdef Node rewritten = None  # memory whose elements are written again and again
        for store in self.stores:
            if len(store.src) > 2:
                rewritten = store.src[0].src[0]
                for s in store.src[2:]:
                    if s.c_op == OP_RANGE:
                        in_order |= self.bits[s.arg[0]]
        for node in order:
            if node.c_op == OP_SINK:
                continue
            mask = self.bits[node.arg[0]] if node.c_op == OP_RANGE else 0
            for s in node.src:
                mask |= masks[s]
            if node.c_op == OP_INDEX and node.src[0] is rewritten:
                mask |= in_order
            if node.c_op == OP_REDUCE or node.c_op == OP_STAGE:
                mask = self.around(node, mask)
            elif node.c_op == OP_WMMA and len(node.src) > 2:
                mask = mask & ~self.lane_mask | self.bits[node.src[2].arg[0]]
            masks[node] = mask
            if mask not in self.mask_ids:
                self.mask_ids[mask] = len(self.masks)
                self.masks.append(mask)
                self.depths.append(None)
                tiles_of[mask] = tuple(
                    sorted(place for number, place in self.tile_place.items() if mask >> number & 1)
                )
            lane_bit = mask & self.lane_mask
            if lane_bit & (lane_bit - 1):
                raise ValueError(
                    f"{node.op!r} depends on two axes of lanes; make one of them a loop"
                )
            info = Info()
            info.index, info.mask, info.mask_id = len(self.infos), mask, self.mask_ids[mask]
            info.lane = lane_bit.bit_length() - 1
            info.tiles, info.needs, info.hoists = tiles_of[mask], (), 0
            for s in node.src:
                info.hoists |= (<Info>self.infos[s]).hoists
            if node in numbers:
                if node.c_op == OP_STAGE and node.arg[0]:
                    info.hoists = 0  # what it takes to fill it is done in its own phase
                info.hoists |= 1 << numbers[node]
            elif node.c_op == OP_INDEX:
                info.form = form_of(node.src[1])
                info.needs = (*self.terms_to_compute(info.form), *node.src[2:])
            elif is_linear(node):
                info.form = form_of(node)
                info.needs = tuple(self.terms_to_compute(info.form))
            elif OP_CAST <= node.c_op <= OP_MULACC:
                info.needs = node.src
            elif node.c_op == OP_WMMA:
                info.needs = node.src[:2]
            self.infos[node] = info
            if node.c_op == OP_SCAN:
                self.scans[node] = self.plan_scan(node, info)
        return 0

    cdef object around(self, Node node, object mask):
        """The axes that a REDUCE or STAGE depends on: not its own, but loops outside of those,
        over blocks of the same axes, since what is in a block depends on which it is."""
        cdef object own = 0
        cdef dict widest = {}  # axis -> the most that an iteration of a loop of its own covers
        cdef LoopPlan loop
        cdef Node s
        for s in node.src[1:]:
            if s.c_op == OP_RANGE:
                own |= self.bits[s.arg[0]]
                widest[self.axis_of_leaf[s.arg[0]]] = 0
        for loop in self.loops:
            if loop.bit & own:
                widest[loop.axis] = max(widest[loop.axis], loop.step)
        mask &= ~own
        for loop in self.loops:
            if loop.axis in widest and loop.step > widest[loop.axis] and not loop.bit & own:
                mask |= loop.bit
        return mask

    cdef list terms_to_compute(self, Form form):
        """The terms of a form that need computing: a tile is a constant, a lane a number."""
        return [
            t for t in form.terms
            if (<Node>t).c_op != OP_RANGE
            or ((<Node>t).arg[0] not in self.tile_place and (<Node>t).arg[0] not in self.axis_of_lane)
        ]

    # ------------------------------------------------------------ where operations are put

    cdef Py_ssize_t depth(self, Py_ssize_t mask_id) except -1:
        """The depth of the innermost open loop among the axes of a set."""
        cdef object known = self.depths[mask_id]
        cdef Py_ssize_t depth
        cdef object mask
        if known is not None:
            return known
        mask = self.masks[mask_id]
        depth = len(self.scopes) - 1
        while depth and not (<Scope>self.scopes[depth]).bits & mask:
            depth -= 1
        self.depths[mask_id] = depth
        return depth

    cdef int scopes_changed(self) except -1:
        self.depths = [None] * len(self.masks)
        return 0

    cdef Node emit(self, Node uop, Py_ssize_t depth=0):
        """Place an operation, once, in the outermost loop that all its sources allow.

        What reads memory stays in the loop at `depth`, or further in.
        """
        cdef Py_ssize_t mine
        cdef Node s
        if uop not in self.home:
            for s in uop.src:
                mine = self.home[s]
                if mine > depth:
                    depth = mine
            self.home[uop] = depth
            (<Scope>self.scopes[depth]).lines.append(uop)
        return uop

    cdef Node emit_all(self, Node node):
        """A node over variables and constants, and all that it is made of."""
        for n in postorder(node):
            self.emit(n)
        return node

    cdef int open(self, Scope scope) except -1:
        self.scopes.append(scope)
        if scope.range is not None:
            self.home[scope.range] = len(self.scopes) - 1
        return self.scopes_changed()

    cdef Node close(self):
        """Put the innermost scope into its parent; the END of it, if it is a loop."""
        cdef Scope scope = self.scopes.pop(), outer = self.scopes[len(self.scopes) - 1]
        cdef Py_ssize_t depth = len(self.scopes) - 1
        cdef dict home = self.home
        cdef Node end
        self.scopes_changed()
        if scope.range is None:
            for uop in scope.lines:
                if home.get(uop, 0) > depth:
                    home[uop] = depth
            outer.lines += scope.lines
            return None
        for uop in scope.lines:  # what may not have run is not there any more
            home.pop(uop, None)
        end = make1(OP_END, types.VOID, scope.range)
        outer.lines.append(scope.range)
        outer.lines += scope.lines
        outer.lines.append(end)
        return end

    cdef Aside go_back(self, Py_ssize_t depth):
        """Set aside the loops inside of a depth, and what is known of axes in them."""
        cdef Aside aside = Aside()
        cdef Scope scope
        aside.homes = {}
        aside.sizes = [(<AxisPlan>a).size for a in self.axes]
        aside.counts = [self.counts[k] for k in range(self.tiles)]
        aside.running, aside.sure = dict(self.running), set(self.sure)
        aside.scopes = self.scopes[depth + 1:]
        del self.scopes[depth + 1:]
        self.scopes_changed()
        for scope in reversed(aside.scopes):
            for uop in scope.lines:
                at = self.home.pop(uop, None)
                if at is not None:
                    aside.homes[uop] = at  # that of a register is the loop that it is in
            self.restore(scope)
        return aside

    cdef int go_on(self, Aside aside) except -1:
        """Go on inside of loops that were set aside."""
        cdef Py_ssize_t k
        cdef Scope scope
        cdef set outside = {uop for uop in aside.homes if uop in self.home}
        for scope in aside.scopes if outside else ():  # they come before these loops now
            scope.lines = [uop for uop in scope.lines if uop not in outside]
        self.scopes += aside.scopes
        for uop, at in aside.homes.items():
            self.home.setdefault(uop, at)
        self.scopes_changed()
        for k in range(len(self.axes)):
            (<AxisPlan>self.axes[k]).size = aside.sizes[k]
        for k in range(self.tiles):
            self.counts[k] = aside.counts[k]
        self.running, self.sure = aside.running, aside.sure
        return 0

    # ------------------------------------------------------------ small operations

    cdef Node index_const(self, int64_t value):
        return self.emit(make_int(types.INDEX, value))

    cdef Node constants(self, list values, DType dtype):
        """A constant for each lane; a scalar if they are all the same."""
        cdef list lanes = [self.emit(make_const(dtype, coerce(dtype, v))) for v in values]
        for x in lanes:
            if x is not lanes[0]:
                return self.emit(make(OP_STACK, dtype, tuple(lanes), None, None))
        return lanes[0]

    cdef Node wide(self, Node x, int64_t lanes):
        """A value in all lanes."""
        if lanes == 1 or x.c_shape:
            return x
        return self.emit(make(OP_EXPAND, x.dtype, (x,), (lanes,), None))

    cdef Node lane(self, Node x, int64_t lane):
        """One lane of a value."""
        if not x.c_shape:
            return x
        if x.c_op == OP_STACK:
            return x.src[lane]
        if x.c_op == OP_EXPAND:
            return x.src[0]
        return self.emit(make(OP_GEP, x.dtype, (x,), lane, None))

    cdef Node shuffle(self, tuple lanes, tuple vectors):
        return self.emit(make(OP_SHUFFLE, (<Node>vectors[0]).dtype, vectors, lanes, None))

    cdef Node reversed_lanes(self, Node x):
        return self.shuffle(tuple(range(lanes_of(x) - 1, -1, -1)), (x,))

    cdef Node as_dtype(self, Node x, DType dtype):
        return x if x.dtype is dtype else self.emit(make1(OP_CAST, dtype, x))

    cdef Node times(self, Node x, int64_t factor):
        """A multiple of an index."""
        if factor == 1:
            return x
        return self.emit(make2(OP_MUL, types.INDEX, x, self.index_const(factor)))

    cdef Node number(self, Node condition):
        """1 or 0: how often a loop runs that does so if a condition holds."""
        return self.emit(
            make3(OP_WHERE, types.INDEX, condition, self.index_const(1), self.index_const(0))
        )

    cdef Node both(self, Node a, Node b):
        """Two conditions at once; None is the one that always holds."""
        cdef int64_t lanes
        if a is None or b is None:
            return b if a is None else a
        lanes = max(lanes_of(a), lanes_of(b))
        known, others = known_lanes(a, lanes), known_lanes(b, lanes)
        if known is not None and others is not None:
            return self.constants([bool(p and q) for p, q in zip(known, others)], types.BOOL)
        return self.emit(make2(OP_AND, types.BOOL, self.wide(a, lanes), self.wide(b, lanes)))

    cdef Node alu(self, Node node, list src):
        """An elementwise operation; scalars meet vectors as broadcasts, constants are folded."""
        cdef int op = node.c_op
        cdef DType dtype = node.dtype
        cdef int64_t lanes = 1
        cdef Node s, a, b
        cdef bint known = True
        cdef list columns
        for s in src:
            if s.c_shape:
                lanes = max(lanes, lanes_of(s))
            if s.c_op != OP_CONST and s.c_op != OP_STACK:
                known = False
        if known and folds(op):
            columns = []
            for s in src:
                values = known_lanes(s, lanes)
                if values is None:
                    break
                columns.append(values)
            else:
                return self.constants([fold(op, row) for row in zip(*columns)], dtype)
        if op == OP_WHERE and (<Node>src[0]).c_op == OP_CONST:
            return src[1] if (<Node>src[0]).arg else src[2]
        if op == OP_AND and dtype is types.BOOL:
            a, b = src
            if a.c_op == OP_CONST:
                return b if a.arg else a
            if b.c_op == OP_CONST:
                return a if b.arg else b
        if lanes > 1:
            src = [self.wide(s, lanes) for s in src]
        return self.emit(make(op, dtype, tuple(src), node.arg, None))

    cdef list transposed(self, list rows):
        """As many vectors as each has lanes, a power of two, with rows and lanes exchanged.

        Two by two, first within what shuffles of processors stay in (128 bits), then those parts.
        """
        cdef Py_ssize_t lanes = len(rows), k
        cdef Py_ssize_t part = min(lanes, max(1, 16 // (<Node>rows[0]).dtype.itemsize))
        cdef list groups = [self.interleaved(rows[k:k + part], part) for k in range(0, lanes, part)]
        cdef list found = [
            self.parts_exchanged([g[k] for g in groups], part) for k in range(part)
        ]
        return [column[k] for k in range(lanes // part) for column in found]

    cdef list interleaved(self, list rows, Py_ssize_t part):
        """Each part of `part` lanes of as many rows, with rows and lanes exchanged."""
        cdef Py_ssize_t unit = 1, k, lanes = lanes_of(rows[0])
        cdef list lists = [rows], halved, low, high
        while unit < part:
            halved = []
            first, second = interleave(lanes, part, unit, 0), interleave(lanes, part, unit, 1)
            for those in lists:
                low, high = [], []
                for k in range(0, len(those), 2):
                    low.append(self.shuffle(first, (those[k], those[k + 1])))
                    high.append(self.shuffle(second, (those[k], those[k + 1])))
                halved += [low, high]
            lists, unit = halved, 2 * unit
        return [x for those in lists for x in those]

    cdef Node pick(self, object parts, Py_ssize_t part, Node a, Node b):
        """Parts of `part` lanes of two vectors."""
        return self.shuffle(tuple([p * part + k for p in parts for k in range(part)]), (a, b))

    cdef list parts_exchanged(self, list rows, Py_ssize_t part):
        """As many rows as parts of `part` lanes in each, with rows and parts exchanged."""
        cdef Py_ssize_t count = len(rows), half = len(rows) // 2, k, first
        cdef list firsts = [], seconds = [], found = [], low, high
        if count == 1:
            return rows
        low, high = list(range(half)), list(range(half, count))
        low += [p + count for p in low]
        high += [p + count for p in high]
        for k in range(0, count, 2):
            firsts.append(self.pick(low, part, rows[k], rows[k + 1]))
            seconds.append(self.pick(high, part, rows[k], rows[k + 1]))
        if count == 2:
            return firsts + seconds
        for a, b in (firsts, seconds):
            for first in range(2):
                found.append(self.pick(range(first, 2 * count, 2), part, a, b))
        return found

    # ------------------------------------------------------------ loops

    cdef int count_tiles(self, AxisPlan axis) except -1:
        """How many copies of a tile there are to cover what is left of an axis."""
        cdef int64_t most, wanted
        if axis.tile >= 0:
            most = self.tile_sizes[axis.tile]
            if PyLong_Check(axis.size):
                wanted = (<int64_t>axis.size + axis.lanes - 1) // axis.lanes
                most = min(most, wanted)
            self.counts[axis.tile] = most
        return 0

    cdef Node size_node(self, object size):
        return self.index_const(size) if PyLong_Check(size) else self.emit_all(size)

    cdef list bodies(self, LoopPlan loop):
        """The bodies of a loop; of those that say so, without iterations that are not needed."""
        cdef list found = self.all_bodies(loop)
        cdef AxisPlan axis = self.axes[loop.axis]
        cdef Node start = None, end = None, sure = None, count, first, after
        cdef Body main = found[0]
        cdef object need
        cdef bint is_late
        cdef int64_t full, step = loop.step
        if not loop.needs or not PyLong_Check(axis.size) or main.at is not None:
            return found
        for need in loop.needs:
            if not need.factor:
                main.count = self.if_needed(need, main.count)
                continue
            count = self.boundary(need, True)
            if need.factor > 0:
                end = count if end is None else self.least(end, count)
            else:
                start = count if start is None else self.most(start, count)
        need = loop.needs[0]
        if len(loop.needs) == 1 and need.factor and need.conditions and loop.is_innermost and axis.lanes == 1:
            full = main.count.arg
            known = {self.conditions[k] for k in need.conditions if self.conditions[k] in self.infos}
            if len(known) == len(need.conditions):
                sure = self.least(self.boundary(need, False), self.index_const(full))
        if sure is None:
            if end is not None:
                main.count = self.least(main.count, end)
            if start is not None:
                main.first = self.least(start, main.count)
                main.count = self.minus(main.count, main.first)
            return found
        is_late = need.factor < 0
        if is_late:  # the condition holds from here on
            first, after = self.least(start, sure), sure
            main.first, main.count, main.sure = sure, self.minus(main.count, sure), known
        else:
            first, after = sure, self.most(sure, self.least(end, self.index_const(full)))
            main.count, main.sure = sure, known
        count = self.minus(after, first)
        if axis.tile < 0:
            part = Body(count, 1, None, False, first)
        elif self.is_filled_in(loop):  # memory for the tile of one iteration
            part = Body(count, step, None, False, first)
        else:  # one step after the other
            part = Body(self.times(count, step), 1, first, True)
        found.insert(0 if is_late else 1, part)
        return found

    cdef bint is_filled_in(self, LoopPlan loop):
        """Whether memory is filled in each iteration of a loop."""
        cdef Node node
        for node in self.hoisted:
            if node.c_op == OP_STAGE and (<Info>self.infos[node]).mask & loop.bit:
                return True
        return False

    cdef tuple rest(self, object need, bint is_low, int64_t sign):
        """(sum over loops that are open or None, constant): the rest of a need times a sign."""
        cdef int64_t constant = sign * <int64_t>(need.low if is_low else need.high)
        cdef Node place
        cdef object leaf
        cdef list parts = []
        for leaf, times, low, high in need.others:
            place = None
            for scope in self.scopes:
                place = (<Scope>scope).places.get(leaf.arg[0], place)
            if place is None:
                constant += sign * <int64_t>(low if is_low else high)
                continue
            if place.c_op == OP_CONST:
                constant += sign * <int64_t>times * <int64_t>place.arg
                continue
            parts.append((place, sign * <int64_t>times))
        return self.sum_of(parts), constant

    cdef Node if_needed(self, object need, Node count):
        """The number of iterations of a loop, 0 where it is not needed at all."""
        cdef Node total
        cdef int64_t constant
        total, constant = self.rest(need, True, 1)
        if total is None:
            return count if constant < 0 else self.index_const(0)
        return self.emit(make3(
            OP_WHERE, types.INDEX,
            self.emit(make2(OP_CMPLT, types.BOOL, total, self.index_const(-constant))),
            count, self.index_const(0),
        ))

    cdef Node boundary(self, object need, bint is_low):
        """How many iterations there are before a need can not hold any more, or may not.

        Of one that holds late: before it can hold, or has to.
        """
        cdef int64_t factor = abs(<int64_t>need.factor), constant
        cdef int64_t sign = -1 if need.factor > 0 else 1
        cdef Node total
        total, constant = self.rest(need, is_low, sign)
        constant += factor - 1 if sign < 0 else factor
        if total is None:
            return self.index_const(max(constant, 0) // factor)
        total = self.emit(make2(OP_ADD, types.INDEX, total, self.index_const(constant)))
        total = self.most(total, self.index_const(0))
        if factor == 1:
            return total
        return self.emit(make2(OP_CDIV, types.INDEX, total, self.index_const(factor)))

    cdef Node least(self, Node a, Node b):
        if a.c_op == OP_CONST and b.c_op == OP_CONST:
            return a if a.arg < b.arg else b
        return self.emit(make3(
            OP_WHERE, types.INDEX, self.emit(make2(OP_CMPLT, types.BOOL, a, b)), a, b
        ))

    cdef Node most(self, Node a, Node b):
        if a.c_op == OP_CONST and b.c_op == OP_CONST:
            return b if a.arg < b.arg else a
        return self.emit(make3(
            OP_WHERE, types.INDEX, self.emit(make2(OP_CMPLT, types.BOOL, a, b)), b, a
        ))

    cdef Node minus(self, Node a, Node b):
        if a.c_op == OP_CONST and b.c_op == OP_CONST:
            return self.index_const(<int64_t>a.arg - <int64_t>b.arg)
        return self.emit(make2(OP_ADD, types.INDEX, a, self.times(b, -1)))

    cdef list all_bodies(self, LoopPlan loop):
        """The main body of a loop, and one for what is left over, if anything is or may be."""
        cdef AxisPlan axis = self.axes[loop.axis]
        cdef int64_t step = loop.step, n
        cdef Node size, whole, rest, count
        cdef list found = []
        if PyLong_Check(axis.size):
            n = axis.size
            if axis.shifts:
                if loop.head is not None:  # the first iteration may start that much earlier
                    n += loop.head.line - 1
                return [Body(self.index_const((n + step - 1) // step), step)]
            if n >= step:
                found.append(Body(self.index_const(n // step), step))
            if n % step:
                found.append(Body(None, n % step, self.index_const(n // step)))
            return found
        size = self.emit_all(axis.size)
        if step == 1:
            return [Body(size, 1)]
        if axis.shifts:
            return [Body(self.emit_all(quotient(plus(size, step - 1), step)), step)]
        whole = self.emit_all(quotient(size, step))
        rest = self.emit_all(make2(OP_FLOORMOD, types.INDEX, size, make_int(types.INDEX, step)))
        if size.vmax >= step:
            found.append(Body(whole, step))
        if loop.is_innermost:
            count = rest
            if axis.lanes > 1:
                count = self.emit_all(quotient(plus(rest, axis.lanes - 1), axis.lanes))
            found.append(Body(count, rest, whole, True))
        else:
            some = self.emit(make2(OP_CMPLT, types.BOOL, self.index_const(0), rest))
            found.append(Body(self.number(some), rest, whole))
        return found

    cdef Node new_range(self, Node count, object kind):
        self.next_axis += 1
        return make(OP_RANGE, types.INDEX, (count,), RangeArg(self.next_axis - 1, kind), None)

    cdef int enter(self, LoopPlan loop, Body body) except -1:
        """Open a body of a loop."""
        cdef AxisPlan axis = self.axes[loop.axis]
        cdef Scope scope = Scope(loop.bit)
        cdef Node iteration, start, last
        cdef bint is_shared = self.is_shared(loop) and body.at is None
        if body.count is not None:
            scope.range = self.new_range(body.count, THREAD if is_shared else loop.kind)
        self.open(scope)
        iteration = scope.range if body.at is None else body.at
        if is_shared and loop.is_uneven and is_constant(body.count):
            iteration = self.from_both_ends(iteration, body.count.arg)
        if body.first is not None:
            iteration = self.emit(make2(OP_ADD, types.INDEX, iteration, body.first))
        if body.sure is not None:
            scope.sure = body.sure.difference(self.sure)
            self.sure |= scope.sure
        scope.places[loop.number] = iteration
        if loop.position >= 0:
            start = self.times(iteration, loop.step)
            if loop.head is not None:
                start = self.most(self.minus(start, self.start_in_line(loop.head)),
                                  self.index_const(0))
            if PyLong_Check(axis.size):
                last = self.index_const(<int64_t>axis.size - loop.step)
            else:
                last = self.emit_all(plus(axis.size, -loop.step))
            inside = self.emit(make2(OP_CMPLT, types.BOOL, start, last))
            scope.places[loop.position] = self.emit(
                make3(OP_WHERE, types.INDEX, inside, start, last)
            )
        scope.axis, scope.size = loop.axis, axis.size
        axis.size = body.size
        self.count_tiles(axis)
        if body.runs_tiles and axis.tile >= 0:
            scope.bits = scope.bits | (<object>1) << axis.tile_number
            self.running[axis.tile_number] = scope.places[axis.tile_number] = scope.range
            self.counts[axis.tile] = 1
            self.scopes_changed()
        return 0

    cdef Node start_in_line(self, object head):
        """Where in a line a row begins; loops that are not open yet count as in their first step."""
        cdef int64_t constant = head.constant
        cdef Node place
        cdef object leaf
        cdef list parts = []
        for leaf, factor in head.terms:
            place = None
            for scope in self.scopes:
                place = (<Scope>scope).places.get(leaf.arg[0], place)
            if place is None:
                continue
            if place.c_op == OP_CONST:
                constant += <int64_t>factor * <int64_t>place.arg
            else:
                parts.append((place, <int64_t>factor))
        if not parts:
            return self.index_const(constant % <int64_t>head.line)
        place = self.sum_of(parts)
        if constant:
            place = self.emit(make2(OP_ADD, types.INDEX, place, self.index_const(constant)))
        return self.emit(make2(OP_AND, types.INDEX, place, self.index_const(head.line - 1)))

    cdef Node from_both_ends(self, Node iteration, int64_t count):
        """Iterations in turns from the first on and from the last one back.

        Threads get equal numbers of neighbours, so those that are longer are spread over all.
        """
        cdef Node two = self.index_const(2)
        cdef Node half = self.emit(make2(OP_CDIV, types.INDEX, iteration, two))
        cdef Node odd = self.emit(make2(OP_CMPLT, types.BOOL, self.times(half, 2), iteration))
        cdef Node back = self.emit(
            make2(OP_ADD, types.INDEX, self.times(half, -1), self.index_const(count - 1))
        )
        return self.emit(make3(OP_WHERE, types.INDEX, odd, back, half))

    cdef Node leave(self):
        """Close the innermost body of a loop; its END."""
        self.restore(self.scopes[len(self.scopes) - 1])
        return self.close()

    cdef int restore(self, Scope scope) except -1:
        """What is known of an axis outside of a body of its loop."""
        cdef AxisPlan axis
        if scope.sure is not None:
            self.sure -= scope.sure
        if scope.axis >= 0:
            axis = self.axes[scope.axis]
            axis.size = scope.size
            self.count_tiles(axis)
            if axis.tile >= 0:
                self.running.pop(axis.tile_number, None)
        return 0

    cdef bint is_shared(self, LoopPlan loop):
        """Whether threads share a loop that is about to be opened: the outermost one only."""
        return loop.is_thread and len(self.scopes) == 1

    cdef list loops_of(self, object mask):
        return [loop for loop in self.loops if (<LoopPlan>loop).bit & mask]

    cdef int nest(self, list groups) except -1:
        """Write groups of stores, each (loops, stores, in place or a STAGE's): those that begin
        with one loop in one body of it, and again for what that loop leaves over."""
        cdef Py_ssize_t first = 0, end
        cdef LoopPlan loop
        cdef Body body
        cdef list inner, bodies
        while first < len(groups):
            loops, stores, in_place = groups[first]
            end = first + 1
            if not loops:
                self.store_body(stores, in_place)
                first = end
                continue
            loop = loops[0]
            while end < len(groups) and groups[end][0] and groups[end][0][0] is loop:
                end += 1
            inner = [(group[0][1:], group[1], group[2]) for group in groups[first:end]]
            bodies = self.bodies(loop)
            if self.scans and self.is_scanned(loop):
                self.nest_scan(loop, bodies, inner)
            elif self.is_shared(loop) and not (
                len(bodies) == 1 and is_constant((<Body>bodies[0]).count)
            ):
                self.nest_shared(loop, bodies, inner)
            else:
                for body in bodies:
                    self.enter(loop, body)
                    self.nest(inner)
                    self.leave()
            first = end
        return 0

    cdef int nest_shared(self, LoopPlan loop, list bodies, list inner) except -1:
        """A loop of threads, of a size that is known: each iteration runs the body it is for."""
        cdef object size = (<AxisPlan>self.axes[loop.axis]).size
        cdef int64_t most = size if PyLong_Check(size) else (<Node>size).vmax
        cdef Node iteration = self.new_range(
            self.index_const((most + loop.step - 1) // loop.step), THREAD
        )
        cdef Node mine, count
        cdef Body body
        self.open(Scope(0, iteration))
        for body in bodies:
            if body.at is None:
                mine = self.emit(make2(OP_CMPLT, types.BOOL, iteration, body.count))
                body.count, body.at = self.number(mine), iteration
            else:
                mine = self.emit(make2(OP_CMPEQ, types.BOOL, iteration, body.at))
                count = self.index_const(1) if body.count is None else body.count
                body.count = self.emit(
                    make3(OP_WHERE, types.INDEX, mine, count, self.index_const(0))
                )
            self.enter(loop, body)
            self.nest(inner)
            self.leave()
        self.close()
        return 0

    # ------------------------------------------------------------ the whole

    cdef list run(self):
        """(operations, steps) of a phase for each STAGE that threads share, and for the stores."""
        cdef list phases = []
        cdef Node node
        for node in self.hoisted:
            if node.c_op == OP_STAGE and node.arg[0]:
                self.fill(node)
                self.filled_before.add(node)
                phases.append(self.phase())
        self.nest(self.groups())
        phases.append(self.phase())
        return phases

    cdef tuple phase(self):
        """What has been written; the next phase begins with nothing."""
        cdef tuple lines = tuple((<Scope>self.scopes[0]).lines)
        cdef Node uop
        cdef object count = 1
        for uop in lines:
            if uop.c_op == OP_RANGE and uop.arg[1] is THREAD:
                count = (<Node>uop.src[0]).arg
        self.scopes = [Scope()]
        self.home = {}
        self.scopes_changed()
        return lines, count

    cdef list groups(self):
        """The stores, those over the same loops together, in order."""
        cdef list groups = [], stores
        cdef set written = set(), loads
        cdef Py_ssize_t first = 0, end
        cdef Node store, n
        while first < len(self.stores):
            mask = (<Info>self.infos[self.stores[first]]).mask & self.loop_mask
            end = first + 1
            while (
                end < len(self.stores)
                and (<Info>self.infos[self.stores[end]]).mask & self.loop_mask == mask
            ):
                end += 1
            stores, first = self.stores[first:end], end
            loads = set()
            for store in stores:
                for part in (store.src[1], *(<Node>store.src[0]).src[1:]):
                    for n in postorder(part):
                        if n.c_op == OP_INDEX:
                            loads.add(n.src[0])
            if loads & written:
                slots = sorted(p.arg[0] for p in loads & written)
                raise ValueError(
                    f"the kernel reads buffers {slots} in one loop nest after writing them in "
                    "another; it has to be two kernels"
                )
            targets = {s.src[0].src[0] for s in stores}
            groups.append((self.loops_of(mask), stores, bool(loads & targets)))
            written |= targets
        return groups

    cdef int store_body(self, list stores, bint in_place) except -1:
        """Compute and store values, inside of the loops that are theirs."""
        cdef object hoists = 0
        cdef Node store
        cdef Info info
        cdef list late = []
        for store in stores:
            hoists |= (<Info>self.infos[store]).hoists
        self.hoist_all(hoists)
        for store in stores:
            if not in_place:
                self.store_tiles(store)
                continue
            info = self.infos[store]  # all is read before anything is written
            self.begin(info.tiles)
            while True:
                self.value(store.src[1])
                self.address_values(store.src[0])
                late.append((store, [self.at[k] for k in range(self.tiles)]))
                if not self.advance(info.tiles):
                    break
        for store, combo in late:
            for k in range(self.tiles):
                self.at[k] = combo[k]
            self.store(store)
        return 0

    cdef int store_tiles(self, Node store) except -1:
        """Store a value for all tiles; through a transposition, where that makes vectors."""
        cdef Info info = self.infos[store]
        cdef Node index = store.src[0], value = store.src[1], gate
        cdef int across = self.across(index, info.lane, info.tiles)
        cdef int64_t lanes, count, first, some, k
        cdef list columns, rows
        cdef tuple others
        cdef int between = self.between(index, info.lane, info.tiles) if across < 0 else -1
        if between >= 0:
            return self.store_interleaved(store, between)
        if across < 0:
            self.begin(info.tiles)
            while True:
                self.value(value)
                self.store(store)
                if not self.advance(info.tiles):
                    break
            return 0
        lanes, count = self.lanes_of_leaf[info.lane], self.counts[across]
        others = tuple([k for k in info.tiles if k != across])
        self.begin(info.tiles)
        while True:
            for first in range(0, count, lanes):
                some = min(lanes, count - first)
                columns = []
                for k in range(some):
                    self.at[across] = first + k
                    columns.append(self.wide(self.value(value), lanes))
                    if some < WORTH_TRANSPOSING:
                        self.store(store)
                self.at[across] = first
                if some < WORTH_TRANSPOSING:
                    continue
                columns += [columns[0]] * (lanes - some)
                self.address_values(index)
                gate = None if some == lanes else self.prefix(some, lanes)
                rows = self.transposed(columns)
                for k in range(self.valid_lanes(info.lane)):
                    self.write(index, self.offset((<Info>self.infos[index]).form, k), rows[k], gate)
            self.at[across] = 0
            if not self.advance(others):
                break
        return 0

    # ------------------------------------------------------------ combinations of tiles

    cdef int begin(self, tuple tiles) except -1:
        """Go to the first of all positions along these tiles."""
        for k in tiles:
            self.at[<Py_ssize_t>k] = 0
        return 0

    cdef bint advance(self, tuple tiles) except -1:
        """Go to the next one, the last tile fastest; False after the last, at the first again."""
        cdef Py_ssize_t k = len(tiles) - 1, tile
        while k >= 0:
            tile = tiles[k]
            self.at[tile] += 1
            if self.at[tile] < self.counts[tile]:
                return True
            self.at[tile] = 0
            k -= 1
        return False

    cdef int64_t key(self, tuple tiles) except -1:
        """The number of the combination among those of these tiles."""
        cdef int64_t key = 0
        cdef Py_ssize_t tile
        for k in tiles:
            tile = k
            key = key * <int64_t>self.tile_sizes[tile] + self.at[tile]
        return key

    # ------------------------------------------------------------ values

    cdef Node known(self, Node node):
        """The value of a node at the combination, if it is computed; else None."""
        cdef Info info = self.infos[node]
        cdef Scope scope = self.scopes[self.depth(info.mask_id)]
        return scope.memo.get((info.index << 40) + self.key(info.tiles))

    cdef int remember(self, Node node, Node value) except -1:
        cdef Info info = self.infos[node]
        cdef Scope scope = self.scopes[self.depth(info.mask_id)]
        scope.memo[(info.index << 40) + self.key(info.tiles)] = value
        return 0

    cdef Node value(self, Node root):
        """The operation that computes a node at the combination, and all it needs, placed.

        Its shape is () where all lanes have one value.
        """
        cdef Node node, n, found = self.known(root)
        cdef list stack
        cdef Py_ssize_t before, k
        cdef tuple needs
        if found is not None:
            return found
        stack = [root]
        while stack:
            node = stack[len(stack) - 1]
            if self.known(node) is not None:
                stack.pop()
                continue
            if self.sure and node in self.sure:
                self.remember(node, self.emit(make_const(types.BOOL, True)))
                continue
            before = len(stack)
            needs = (<Info>self.infos[node]).needs
            for k in range(len(needs) - 1, -1, -1):
                n = needs[k]
                if self.known(n) is None:
                    stack.append(n)
            if len(stack) == before:
                stack.pop()
                self.remember(node, self.compute(node))
        return self.known(root)

    cdef Node compute(self, Node node):
        """A node whose needs are computed."""
        cdef Info info = self.infos[node]
        cdef int op = node.c_op
        cdef object place
        cdef Py_ssize_t number
        if op == OP_INDEX:
            return self.load(node)
        if op == OP_RANGE:
            number = node.arg[0]
            place = (<Scope>self.scopes[self.depth(info.mask_id)]).places.get(number)
            if place is not None:
                return place
            if number in self.axis_of_lane:
                return self.constants(list(range(self.lanes_of_leaf[number])), types.INDEX)
            if number in self.tile_place:
                return self.index_const(self.at[<Py_ssize_t>self.tile_place[number]])
            raise ValueError(f"the loop {node.arg!r} is not open where its position is used")
        if info.form is not None:
            return self.index_value(info)
        if op == OP_CONST or op == OP_DEFINE_VAR or op == OP_PARAM:
            return self.emit(node)
        if op == OP_SCAN:
            return self.scan(node, info)
        if not OP_CAST <= op <= OP_MULACC:
            if op == OP_REDUCE:
                raise ValueError("a REDUCE is used before its loops are open")
            raise ValueError(f"{node.op!r} is no part of a kernel; the schedule has to remove it")
        return self.alu(node, [self.value_of(s) for s in node.src])

    cdef Node value_of(self, Node node):
        cdef Node found = self.known(node)
        if found is None:
            raise AssertionError(f"{node.op!r} is not computed yet")
        return found

    # ------------------------------------------------------------ indices

    cdef tuple base(self, Form form, int64_t lane, object without):
        """(sum over loops or None, constant) of an index in one lane: outer loops come first.

        `without`: the bit of an axis; terms that depend on it are left out.
        """
        cdef int64_t constant = form.constant, factor
        cdef list parts = []
        cdef Node term, x
        cdef Py_ssize_t k, number
        cdef int tile
        for k in range(len(form.terms)):
            term, factor = form.terms[k], form.factors[k]
            if without and (<Info>self.infos[term]).mask & without:
                continue
            if term.c_op == OP_RANGE:
                number = term.arg[0]
                if number in self.axis_of_lane:
                    constant += factor * lane
                    continue
                if number in self.tile_place:
                    x = self.running.get(number)
                    if x is None:
                        tile = self.tile_place[number]
                        constant += factor * self.at[tile]
                        continue
                else:
                    x = self.value_of(term)
            else:
                x = self.lane(self.value_of(term), lane)
            if x.c_op == OP_CONST:
                constant += factor * <int64_t>x.arg
            else:
                parts.append((self.home[x], len(parts), x, factor))
        if len(parts) > 1:
            parts.sort()
        return self.sum_of([part[2:] for part in parts]), constant

    cdef Node sum_of(self, list parts):
        """The sum of nodes times factors, in order; None of nothing."""
        cdef Node total = None, x, part
        cdef int64_t factor
        for x, factor in parts:
            part = self.times(x, factor)
            total = part if total is None else self.emit(make2(OP_ADD, types.INDEX, total, part))
        return total

    cdef Node offset(self, Form form, int64_t lane):
        """The value of an index in one lane."""
        cdef int64_t constant
        cdef Node base
        base, constant = self.base(form, lane, 0)
        if base is None:
            return self.index_const(constant)
        if not constant:
            return base
        return self.emit(make2(OP_ADD, types.INDEX, base, self.index_const(constant)))

    cdef object stride(self, Form form, int lane):
        """How far apart neighbouring lanes of an index are; None if not evenly."""
        cdef object stride = 0, bit
        cdef Py_ssize_t k
        cdef Node term
        if lane >= 0:
            bit = (<object>1) << lane
            for k in range(len(form.terms)):
                term = form.terms[k]
                if term.c_op == OP_RANGE and term.arg[0] == lane:
                    stride = form.factors[k]
                elif (<Info>self.infos[term]).mask & bit:
                    return None
        return stride

    cdef Node index_value(self, Info info):
        """An index used as a number."""
        if info.lane < 0 or self.stride(info.form, info.lane) == 0:
            return self.offset(info.form, 0)
        return self.offsets(info.form, info.lane)

    cdef Node offsets(self, Form form, int lane):
        """The value of an index in all lanes."""
        cdef int64_t lanes = self.lanes_of_leaf[lane], constant, factor
        cdef object bit = (<object>1) << lane
        cdef Node base, term, x, total
        cdef list parts, sums
        cdef Py_ssize_t k
        base, constant = self.base(form, 0, bit)
        sums = [constant] * lanes  # of the lanes' constant parts
        parts = [] if base is None else [self.wide(base, lanes)]
        for k in range(len(form.terms)):
            term, factor = form.terms[k], form.factors[k]
            if term.c_op == OP_RANGE and term.arg[0] == lane:
                sums = [c + factor * i for i, c in enumerate(sums)]
            elif (<Info>self.infos[term]).mask & bit:
                x = self.value_of(term)
                known = known_lanes(x, lanes)
                if known is not None:
                    sums = [c + factor * v for c, v in zip(sums, known)]
                    continue
                x = self.wide(x, lanes)
                if factor != 1:
                    x = self.emit(
                        make2(OP_MUL, types.INDEX, x, self.wide(self.index_const(factor), lanes))
                    )
                parts.append(x)
        if not parts or any(sums):
            parts.append(self.wide(self.constants(sums, types.INDEX), lanes))
        total = parts[0]
        for x in parts[1:]:
            total = self.emit(make2(OP_ADD, types.INDEX, total, x))
        return total

    # ------------------------------------------------------------ lanes that are idle

    cdef int64_t valid_lanes(self, int lane) except -1:
        """How many lanes of a vector are inside of its axis."""
        cdef AxisPlan axis = self.axes[self.axis_of_lane[lane]]
        cdef int64_t first = 0
        if not PyLong_Check(axis.size):
            return axis.lanes
        if axis.tile >= 0:
            first = self.at[axis.tile] * axis.lanes
        return min(axis.lanes, <int64_t>axis.size - first)

    cdef Node idle(self, int lane):
        """The condition under which a lane is inside of its axis; None if all are."""
        cdef AxisPlan axis
        cdef Py_ssize_t place
        cdef int64_t valid
        cdef Node left, here
        if lane < 0:
            return None
        place = self.axis_of_lane[lane]
        axis = self.axes[place]
        if PyLong_Check(axis.size):
            valid = self.valid_lanes(lane)
            return None if valid == axis.lanes else self.prefix(valid, axis.lanes)
        open_bits = self.open_bits()
        for loop in self.loops:
            if (<LoopPlan>loop).axis == place and (<LoopPlan>loop).bit & open_bits:
                break
        else:
            return None  # in front of its loops
        left = self.emit_all(axis.size)
        if axis.tile >= 0 and axis.tile_number in self.running:
            left = self.emit(
                make2(OP_SUB, types.INDEX, left,
                      self.times(self.running[axis.tile_number], axis.lanes))
            )
        here = self.constants(list(range(axis.lanes)), types.INDEX)
        return self.emit(make2(OP_CMPLT, types.BOOL, here, self.wide(left, axis.lanes)))

    cdef object open_bits(self):
        cdef object bits = 0
        for scope in self.scopes:
            bits |= (<Scope>scope).bits
        return bits

    cdef Node prefix(self, int64_t count, int64_t lanes):
        """True in the first lanes."""
        return self.constants([k < count for k in range(lanes)], types.BOOL)

    # ------------------------------------------------------------ memory

    cdef Node address(self, Node index, Node offset):
        """The address of an element of a PARAM or of scratch memory."""
        cdef Node memory = index.src[0]
        if memory.c_op == OP_STAGE:
            memory = (<Node>(<Node>memory.src[0]).src[0]).src[0]
        return self.emit(make2(OP_INDEX, index.dtype, self.emit(memory), offset))

    cdef Node gate(self, Node index):
        """The condition of an access; None if it always holds."""
        cdef Node gate
        if len(index.src) < 3:
            return None
        gate = self.value_of(index.src[2])
        return None if gate.c_op == OP_CONST and gate.arg else gate

    cdef Node read(self, Node index, Node offset, object lanes, Node gate):
        """A LOAD, in the innermost loop that its node depends on."""
        cdef Node memory = index.src[0], address = self.address(index, offset)
        cdef Py_ssize_t depth = self.depth((<Info>self.infos[index]).mask_id)
        cdef object tag = None
        if memory.c_op == OP_STAGE:
            tag = self.fills.get(memory)
            if memory not in self.filled_before:
                depth = max(depth, self.fill_depth(memory))
        elif memory.c_op == OP_DEFINE_LOCAL:
            self.fresh += 1
            tag = -self.fresh
        src = (address,) if gate is None else (address, gate)
        return self.emit(make(OP_LOAD, index.dtype, src, lanes, tag), depth)

    cdef Node load(self, Node index):
        """The elements of a buffer: a vector, a scalar for all lanes, or one lane at a time."""
        cdef Info info = self.infos[index]
        cdef Node gate = self.gate(index), one, at, zero = None
        cdef DType dtype = index.dtype
        cdef int across
        cdef object stride
        cdef list parts
        cdef int64_t lanes, k
        if gate is not None and gate.c_op == OP_CONST:
            if dtype.c_integral or dtype.bitsize >= 32:
                return self.emit(make_const(dtype, coerce(dtype, 0)))
        stride = self.stride(info.form, info.lane)
        lanes = 1 if info.lane < 0 else self.lanes_of_leaf[info.lane]
        if stride == 0 and (gate is None or not gate.c_shape):
            return self.read(index, self.offset(info.form, 0), 1, gate)
        gate = self.both(gate, self.idle(info.lane))
        if stride == 1:
            return self.read(index, self.offset(info.form, 0), lanes, gate)
        if stride == -1 and (gate is None or not gate.c_shape):
            at = self.offset(info.form, lanes - 1)
            return self.reversed_lanes(self.read(index, at, lanes, gate))
        across = self.across(index, info.lane, info.tiles)
        if across >= 0:
            return self.load_across(index, info, across)
        if (
            PyLong_Check(stride) and 2 <= stride <= WIDEST_STRIDE
            and lanes >= WORTH_TRANSPOSING and dtype.itemsize >= LEAST_SHUFFLED
            and lanes * dtype.itemsize <= TRANSPOSED_BYTES
        ):
            return self.load_apart(index, info, stride, lanes, gate)
        parts = []
        for k, at in enumerate(self.lane_offsets(info.form, info.lane)):
            one = None if gate is None else self.lane(gate, k)
            if one is not None and one.c_op == OP_CONST:
                if not one.arg:
                    if zero is None:
                        zero = self.read(index, at, 1, one)
                    parts.append(zero)
                    continue
                one = None
            parts.append(self.read(index, at, 1, one))
        return self.emit(make(OP_STACK, dtype, tuple(parts), None, None))

    cdef Node load_apart(
        self, Node index, Info info, int64_t stride, int64_t lanes, Node gate
    ):
        """Lanes a few elements apart: taken out of vectors that lie side by side.

        The last vector ends with the last lane, so that nothing behind it is read.
        """
        cdef int64_t constant, start, k, n
        cdef Node base, at, found = None, vector, mask
        cdef list picked
        base, constant = self.base(info.form, 0, 0)
        for k in range(stride):
            start = k * lanes if k < stride - 1 else (stride - 1) * (lanes - 1)
            at = self.index_const(constant + start)
            if base is not None:
                at = base if constant + start == 0 else self.emit(
                    make2(OP_ADD, types.INDEX, base, at)
                )
            # where each lane of the result is in this vector, if it is
            picked = [
                stride * n - start if stride * n // lanes == k else -1 for n in range(lanes)
            ]
            mask = None if gate is None else self.spread(gate, picked, lanes)
            vector = self.read(index, at, lanes, mask)
            found = vector if found is None else self.shuffle(
                tuple([
                    lanes + picked[n] if picked[n] >= 0
                    else stride * n if k == 1 and stride * n < lanes else n
                    for n in range(lanes)
                ]),
                (found, vector),
            )
        return found

    cdef Node spread(self, Node gate, list picked, int64_t lanes):
        """A condition of lanes as one of the vector that they are taken out of; False elsewhere."""
        cdef Node a, b
        cdef list source = [-1] * lanes
        cdef int64_t n
        if not gate.c_shape or gate.c_op == OP_EXPAND:
            return gate
        for n in range(lanes):
            if picked[n] >= 0:
                source[picked[n]] = n
        known = known_lanes(gate, lanes)
        if known is not None:
            return self.wide(
                self.constants([n >= 0 and bool(known[n]) for n in source], types.BOOL), lanes
            )
        if gate.c_op == OP_AND:  # a part that all lanes have in common stays so
            a, b = gate.src
            return self.both(self.spread(a, picked, lanes), self.spread(b, picked, lanes))
        return self.shuffle(
            tuple([lanes if n < 0 else n for n in source]),
            (gate, self.wide(self.emit(make_const(types.BOOL, False)), lanes)),
        )
    cdef int between(self, Node index, int lane, tuple tiles) except -2:
        """The tile whose two neighbours are a lane of a store and what lies before the next lane.

        -1 where there is none.
        """
        cdef Info info = self.infos[index]
        cdef int64_t lanes
        cdef int place
        cdef Py_ssize_t k
        cdef Node term, other
        if lane < 0 or len(index.src) > 2:
            return -1
        lanes = self.lanes_of_leaf[lane]
        if lanes < WORTH_TRANSPOSING or lanes % 2 or index.dtype.itemsize < LEAST_SHUFFLED:
            return -1
        if lanes * index.dtype.itemsize > TRANSPOSED_BYTES:
            return -1
        if self.stride(info.form, lane) != 2:
            return -1
        if not PyLong_Check((<AxisPlan>self.axes[self.axis_of_lane[lane]]).size):
            return -1
        for k in range(len(info.form.terms)):
            term = info.form.terms[k]
            if term.c_op != OP_RANGE or info.form.factors[k] != 1:
                continue
            place = self.tile_place.get(term.arg[0], -1)
            if place not in tiles or term.arg[0] in self.running or self.counts[place] != 2:
                continue
            bit = 1 << term.arg[0]
            for other in info.form.terms:
                if other is not term and (<Info>self.infos[other]).mask & bit:
                    break
            else:
                return place
        return -1

    cdef int store_interleaved(self, Node store, int place) except -1:
        """Store the two neighbours along a tile in turns: each lane lies between those of the other."""
        cdef Info info = self.infos[store]
        cdef Node index = store.src[0], value = store.src[1], first, second, gate
        cdef int64_t lanes = self.lanes_of_leaf[info.lane], half, count
        cdef tuple others = tuple([k for k in info.tiles if k != place])
        self.begin(info.tiles)
        while True:
            first = self.wide(self.value(value), lanes)
            self.at[place] = 1
            second = self.wide(self.value(value), lanes)
            self.at[place] = 0
            self.address_values(index)
            count = 2 * self.valid_lanes(info.lane)
            for half in range(2):
                picks = []
                for k in range(lanes // 2):
                    picks += [half * lanes // 2 + k, lanes + half * lanes // 2 + k]
                if count > half * lanes:
                    gate = None
                    if count < (half + 1) * lanes:
                        gate = self.prefix(count - half * lanes, lanes)
                    at = self.offset((<Info>self.infos[index]).form, 0)
                    if half:
                        at = self.emit(make2(OP_ADD, types.INDEX, at, self.index_const(lanes)))
                    self.write(index, at, self.shuffle(tuple(picks), (first, second)), gate)
            if not self.advance(others):
                break
        return 0

    cdef int across(self, Node index, int lane, tuple tiles) except -2:
        """The tile whose neighbours are neighbours in memory, where those of lanes are not.

        -1 where transposing is not possible or not worth it.
        """
        cdef Info info = self.infos[index]
        cdef int64_t lanes
        cdef int place
        cdef Py_ssize_t k
        cdef Node term, other
        if lane < 0 or len(index.src) > 2:
            return -1
        lanes = self.lanes_of_leaf[lane]
        if (
            lanes < WORTH_TRANSPOSING
            or lanes & (lanes - 1)
            or lanes * index.dtype.itemsize > TRANSPOSED_BYTES
        ):
            return -1
        if self.stride(info.form, lane) in (None, 0, 1, -1):
            return -1
        if not PyLong_Check((<AxisPlan>self.axes[self.axis_of_lane[lane]]).size):
            return -1
        for k in range(len(info.form.terms)):
            term = info.form.terms[k]
            if term.c_op != OP_RANGE or info.form.factors[k] != 1:
                continue
            place = self.tile_place.get(term.arg[0], -1)
            if place not in tiles or term.arg[0] in self.running:
                continue
            bit = 1 << term.arg[0]
            for other in info.form.terms:
                if other is not term and (<Info>self.infos[other]).mask & bit:
                    break
            else:
                if self.counts[place] >= WORTH_TRANSPOSING:
                    return place
        return -1

    cdef Node load_across(self, Node index, Info info, int across):
        """Lanes that are far apart: vectors along the tile, for each lane, transposed."""
        cdef int64_t lanes = self.lanes_of_leaf[info.lane], here = self.at[across], k
        cdef int64_t first = here // lanes * lanes
        cdef int64_t some = min(lanes, self.counts[across] - first), valid
        cdef Node gate = None if some == lanes else self.prefix(some, lanes)
        cdef list rows, columns
        self.at[across] = first
        valid = self.valid_lanes(info.lane)
        rows = [self.read(index, self.offset(info.form, k), lanes, gate) for k in range(valid)]
        rows += [rows[0]] * (lanes - valid)
        columns = self.transposed(rows)
        for k in range(some):
            self.at[across] = first + k
            self.remember(index, columns[k])
        self.at[across] = here
        return columns[here - first]

    cdef list lane_offsets(self, Form form, int lane):
        """The value of an index in each lane, by itself."""
        cdef int64_t lanes = self.lanes_of_leaf[lane], k
        cdef Node offsets
        if self.stride(form, lane) is None:
            offsets = self.offsets(form, lane)
            return [self.lane(offsets, k) for k in range(lanes)]
        return [self.offset(form, k) for k in range(lanes)]

    cdef int address_values(self, Node index) except -1:
        """Compute what an address and its gate are made of."""
        for node in (<Info>self.infos[index]).needs:
            self.value(node)
        return 0

    cdef int store(self, Node store) except -1:
        """Write the lanes of a value: as a vector where they are neighbours, else one by one."""
        cdef Node index = store.src[0], value, gate, one, at
        cdef Info info = self.infos[index]
        cdef int lane = (<Info>self.infos[store]).lane
        cdef object stride
        cdef int64_t lanes, k
        self.address_values(index)
        value, gate = self.value_of(store.src[1]), self.gate(index)
        if gate is not None and gate.c_op == OP_CONST:
            return 0
        if lane < 0:
            return self.write(index, self.offset(info.form, 0), value, gate)
        stride = self.stride(info.form, lane)
        lanes = self.lanes_of_leaf[lane]
        if stride == 0:
            raise ValueError("the lanes of a vector are all stored to one address")
        gate = self.both(gate, self.idle(lane))
        if stride == 1:
            return self.write(index, self.offset(info.form, 0), self.wide(value, lanes), gate)
        if stride == -1 and (gate is None or not gate.c_shape):
            value = self.reversed_lanes(self.wide(value, lanes))
            return self.write(index, self.offset(info.form, lanes - 1), value, gate)
        for k, at in enumerate(self.lane_offsets(info.form, lane)):
            one = None if gate is None else self.lane(gate, k)
            if one is not None and one.c_op == OP_CONST:
                if not one.arg:
                    continue
                one = None
            self.write(index, at, self.lane(value, k), one)
        return 0

    cdef int write(self, Node index, Node offset, Node value, Node gate) except -1:
        """A STORE, in the innermost loop."""
        cdef Node address = self.address(index, offset)
        cdef object way = "nontemporal" if index.src[0] in self.streamed else None
        cdef object tag = None
        if (<Node>index.src[0]).c_op == OP_DEFINE_LOCAL:
            self.fresh += 1  # what is filled twice is stored twice
            tag = -self.fresh
        src = (address, value) if gate is None else (address, value, gate)
        (<Scope>self.scopes[len(self.scopes) - 1]).lines.append(
            make(OP_STORE, types.VOID, src, way, tag)
        )
        return 0

    # ------------------------------------------------------------ what is done ahead

    cdef int hoist_all(self, object wanted) except -1:
        """Compute the REDUCEs and fill the STAGEs of a set, in order.

        Only as far as the loops around them are open. REDUCEs over the same ranges in the same
        loops share the new loops, unless one needs the other.
        """
        cdef object closed = self.loop_mask & ~self.open_bits(), members, outer
        cdef list ready = [], group
        cdef Node first, node
        cdef Info info
        for number in members_of(wanted):
            if not (<Info>self.infos[self.hoisted[number]]).mask & closed:
                ready.append(number)
        for number in ready:
            first = self.hoisted[number]
            if self.is_there(first):
                continue
            if first.c_op == OP_STAGE:
                self.fill(first)
                continue
            group, members = [first], 1 << number
            outer = (<Info>self.infos[first]).mask & self.loop_mask
            for other in ready:
                node = self.hoisted[other]
                info = self.infos[node]
                if (
                    other > number
                    and node.c_op == OP_REDUCE
                    and node.src[1:] == first.src[1:]
                    and info.mask & self.loop_mask == outer
                    and not info.hoists & members
                    and not self.is_there(node)
                    and self.is_ready(info.hoists & ~(1 << other), closed)
                ):
                    group.append(node)
                    members |= 1 << other
            self.reduce(group)
        return 0

    cdef bint is_there(self, Node node) except -1:
        """Whether a REDUCE is computed, or a STAGE filled, for the loops as they are now."""
        cdef Info info = self.infos[node]
        cdef Scope scope
        if node.c_op == OP_REDUCE:
            self.begin(info.tiles)
            return self.known(node) is not None
        if node in self.filled_before:
            return True
        scope = self.scopes[self.fill_depth(node)]
        return node in scope.memo

    cdef bint is_ready(self, object needed, object closed) except -1:
        """Whether the members of a set are there, or can be inside of the loops about to open.

        The order of numbers is one of dependence, so a later member of a group may need one that
        comes between; then it waits for its own turn.
        """
        for number in members_of(needed):
            node = self.hoisted[number]
            if not (<Info>self.infos[node]).mask & closed and not self.is_there(node):
                return False
        return True

    cdef Py_ssize_t fill_depth(self, Node stage) except -1:
        """The depth of the loop in which memory is written: inside of the one of threads."""
        cdef Py_ssize_t depth = self.depth((<Info>self.infos[stage]).mask_id)
        cdef Node loop
        if not depth and len(self.scopes) > 1:
            loop = (<Scope>self.scopes[1]).range
            if loop is not None and loop.arg[1] is THREAD:
                return 1
        return depth

    cdef int fill(self, Node stage) except -1:
        """Fill the memory of a STAGE, in loops of its own."""
        cdef Py_ssize_t depth = self.fill_depth(stage)
        cdef list combo = [self.at[k] for k in range(self.tiles)]
        cdef Aside aside = self.go_back(depth)
        cdef object own = 0
        cdef Node r
        for r in stage.src[1:]:
            if r.c_op == OP_RANGE:
                own |= self.bits[r.arg[0]]
        self.nest([(self.loops_of(own & self.loop_mask), [stage.src[0]], False)])
        self.fills[stage] = self.fills.get(stage, 0) + 1
        (<Scope>self.scopes[depth]).memo[stage] = stage.src[0]
        self.go_on(aside)
        for k in range(self.tiles):
            self.at[k] = combo[k]
        return 0

    # ------------------------------------------------------------ reductions

    cdef int reduce(self, list group) except -1:
        """Compute REDUCEs over the same ranges: registers, loops, and what is left in the end."""
        cdef Node first = group[0], q, r, start, total
        cdef Sums sums = Sums()
        cdef object bits = 0
        cdef list loops, given, combo = [self.at[k] for k in range(self.tiles)], values, gates
        cdef Aside aside
        cdef Accumulator a
        cdef Info info
        cdef dict mine
        cdef int64_t count = 0, product
        sums.group, sums.lane, gates = group, -1, []
        for r in first.src[1:]:
            if r.dtype is types.BOOL:
                gates.append(r)
            elif r.c_op == OP_RANGE:
                bits |= self.bits[r.arg[0]]
                if r.arg[0] in self.axis_of_lane:
                    sums.lane = r.arg[0]
        loops = self.loops_of(bits)
        sums.own = tuple(sorted([p for n, p in self.tile_place.items() if bits >> n & 1]))
        below = 0
        for q in group:
            below |= (<Info>self.infos[q]).hoists
        aside = self.go_back(
            self.fill_depth(first) if below & self.private_stages
            else self.depth((<Info>self.infos[first]).mask_id)
        )
        for q in group:
            product = 1
            for k in (<Info>self.infos[q]).tiles:
                product *= self.counts[<Py_ssize_t>k]
            count += product
        sizes = [self.tile_sizes[k] for k in sums.own]
        sums.separate = tuple([sums.own[k] for k in self.rules.separate(group, sizes, count)])
        given = [(<LoopPlan>loop).given for loop in loops]
        sums.steps = [self.steps_of(loop, sums.separate) for loop in loops]
        if loops:  # what has no loop is done in each step of the innermost one
            sums.steps[len(loops) - 1] *= self.steps_without_loops(sums, loops)
        sums.levels = self.rules.levels(group, given, sums.steps)
        sums.accumulators, sums.every = [], []
        for q in group:
            info = self.infos[q]
            start = self.identity(q, sums.lane, self.rules.dtype(q, given, sums.steps, sums.levels, 0))
            mine = {}
            self.begin(info.tiles)
            while True:
                self.begin(sums.separate)
                while True:
                    a = Accumulator()
                    a.value = start
                    mine[self.key(info.tiles), self.key(sums.separate)] = a
                    sums.every.append((q, a))
                    if not self.advance(sums.separate):
                        break
                if not self.advance(info.tiles):
                    break
            sums.accumulators.append(mine)
        self.sum_loops(sums, given, loops, 0, gates)
        for q, mine in zip(group, sums.accumulators):
            info = self.infos[q]
            self.begin(info.tiles)
            while True:
                values = []
                self.begin(sums.separate)
                while True:
                    a = mine[self.key(info.tiles), self.key(sums.separate)]
                    values.append(a.value)
                    if not self.advance(sums.separate):
                        break
                total = self.tree(q, values)
                if sums.lane >= 0:
                    total = self.horizontal(q, total)
                self.remember(q, self.as_dtype(total, q.dtype))
                if not self.advance(info.tiles):
                    break
        self.go_on(aside)
        for k in range(self.tiles):
            self.at[k] = combo[k]
        return 0

    cdef object steps_of(self, LoopPlan loop, tuple separate):
        """How often a loop adds to one sum: also along its tile, if that shares a sum."""
        cdef AxisPlan axis = self.axes[loop.axis]
        cdef object count = loop.given.leaf.src[0].arg
        if loop.is_innermost and axis.tile >= 0 and axis.tile not in separate:
            count *= self.tile_sizes[axis.tile]
        return count

    cdef object steps_without_loops(self, Sums sums, list loops):
        """How many steps of one sum there are along tiles of axes that have no loop."""
        cdef set others = {(<AxisPlan>self.axes[(<LoopPlan>loop).axis]).tile for loop in loops}
        cdef object steps = 1
        for place in sums.own:
            if place not in others and place not in sums.separate:
                steps *= self.tile_sizes[place]
        return steps

    cdef int sum_loops(
        self, Sums sums, list given, list loops, Py_ssize_t level, list gates
    ) except -1:
        """The loops of a reduction from here on; accumulators hold the result afterwards.

        `gates` are conditions that all it adds has. The first loop inside of those that one
        depends on does not run where it does not hold.
        """
        cdef Accumulator a
        cdef LoopPlan loop
        cdef Body body
        cdef Node runs
        cdef list totals
        cdef Py_ssize_t k
        cdef int64_t most, count, strip
        if not loops:
            return self.sum_body(sums)
        loop = loops[0]
        if 0 < level < len(sums.levels) and loop.given is sums.levels[level]:
            totals = [(<Accumulator>pair[1]).value for pair in sums.every]
            for q, a in sums.every:
                a.value = self.identity(
                    q, sums.lane,
                    self.rules.dtype(q, given, sums.steps, sums.levels, level),
                )
            self.sum_loops(sums, given, loops, level + 1, gates)
            for k, (q, a) in enumerate(sums.every):
                a.value = self.combine(
                    q, totals[k], self.as_dtype(a.value, (<Node>totals[k]).dtype)
                )
            return 0
        level = max(level, 1)
        runs, gates = self.ready_gates(loops, gates)
        most = self.rules.strip(sums.group, given, sums.steps) if len(loops) == 1 else 0
        for body in self.bodies(loop):
            if runs is not None:
                body.count = self.emit(make3(
                    OP_WHERE, types.INDEX, runs,
                    self.index_const(1) if body.count is None else body.count, self.index_const(0),
                ))
            strip = 0
            if most and body.count is not None and body.count.c_op == OP_CONST:
                count = body.count.arg
                strip = 0 if count <= most else -(-count // -(-count // most))
            self.sum_iterations(sums, given, loops, level, gates, body, strip)
        return 0

    cdef int sum_iterations(
        self, Sums sums, list given, list loops, Py_ssize_t level, list gates, Body body,
        int64_t strip,
    ) except -1:
        """One body of the first loop of a reduction, and all inside of it.

        With `strip` it is a loop over strips of so many iterations, each of which is added up by
        itself, as in `SumRules.strip`.
        """
        cdef Accumulator a
        cdef Scope scope
        cdef Node first
        cdef list every = [a for _, a in sums.every]
        cdef list registers = [] if body.count is None else self.registers_for(every), totals
        cdef Py_ssize_t k
        if strip:
            scope = Scope()
            scope.range = self.new_range(
                self.index_const((<int64_t>body.count.arg + strip - 1) // strip),
                (<LoopPlan>loops[0]).kind,
            )
            self.open(scope)
        else:
            self.enter(loops[0], body)
        self.go_on_from(registers, every)
        if strip:
            totals = registers
            for q, a in sums.every:
                a.value = self.identity(q, sums.lane, q.dtype)
            first = self.times(scope.range, strip)
            count = self.index_const(strip)
            if <int64_t>body.count.arg % strip:
                count = self.least(count, self.minus(body.count, first))
            if body.first is not None:
                first = self.emit(make2(OP_ADD, types.INDEX, first, body.first))
            inner = Body(count, body.size, None, False, first, body.sure)
            self.sum_iterations(sums, given, loops, level, gates, inner, 0)
            for k, (q, a) in enumerate(sums.every):
                a.value = self.combine(
                    q, totals[k], self.as_dtype(a.value, (<Node>totals[k]).dtype)
                )
        else:
            self.sum_loops(sums, given, loops[1:], level, gates)
        self.leave_with(registers, every)
        return 0

    cdef list registers_for(self, list accumulators):
        """A register for each of some accumulators, in front of a loop."""
        cdef Accumulator a
        cdef Node register
        cdef list registers = []
        for a in accumulators:
            register = make(
                OP_DEFINE_REG, a.value.dtype, (a.value,),
                RegArg(self.next_register, lanes_of(a.value)), None,
            )
            self.next_register += 1
            self.last_scope().lines.append(register)
            registers.append(register)
        return registers

    cdef int go_on_from(self, list registers, list accumulators) except -1:
        """In a loop: go on from what registers hold, another value in each iteration."""
        cdef Py_ssize_t k
        cdef Node register
        for k, register in enumerate(registers):
            (<Accumulator>accumulators[k]).value = register
            self.home[register] = len(self.scopes) - 1
        return 0

    cdef int leave_with(self, list registers, list accumulators) except -1:
        """Close the innermost body of a loop; accumulators hold what it has left in registers."""
        cdef Accumulator a
        cdef Node register, end
        cdef Py_ssize_t k
        for k, register in enumerate(registers):
            a = accumulators[k]
            self.last_scope().lines.append(make2(OP_STORE, types.VOID, register, a.value))
        end = self.leave()
        for k, a in enumerate(accumulators):
            if registers:
                register = registers[k]
                a.value = make2(OP_AFTER, register.dtype, register, end)
                self.last_scope().lines.append(a.value)
            self.home[a.value] = len(self.scopes) - 1
        return 0

    cdef tuple ready_gates(self, list loops, list gates):
        """(conditions that are known before these loops, or None; those that are not yet)."""
        cdef object closed = 0
        cdef Node known = None
        cdef list later = []
        if not gates or self.is_shared(loops[0]):
            return None, gates
        for loop in loops:
            closed |= (<LoopPlan>loop).bit
        for gate in gates:
            if (<Info>self.infos[gate]).mask & closed:
                later.append(gate)
            else:
                known = self.both(known, self.value(gate))
        return (None if is_constant(known) and known.arg else known), later

    cdef Scope last_scope(self):
        return self.scopes[len(self.scopes) - 1]

    cdef int sum_body(self, Sums sums) except -1:
        """One step of all sums of a group, inside of their loops."""
        cdef object below = 0
        cdef Node q
        cdef Accumulator a
        cdef Info info
        cdef dict mine
        cdef Py_ssize_t k
        for q in sums.group:
            below |= (<Info>self.infos[q.src[0]]).hoists
        self.hoist_all(below)
        self.begin(sums.own)
        while True:
            for k in range(len(sums.group)):
                q, mine = sums.group[k], sums.accumulators[k]
                info = self.infos[q]
                self.begin(info.tiles)
                while True:
                    a = mine[self.key(info.tiles), self.key(sums.separate)]
                    a.value = self.accumulate(q, a.value, sums.lane)
                    if not self.advance(info.tiles):
                        break
            if not self.advance(sums.own):
                break
        return 0

    cdef Node nothing(self, Node q, DType dtype):
        """What a reduction of nothing is."""
        cdef int op = int(q.arg[0])
        cdef object value = 1 if op == OP_MUL else q.dtype.min if op == OP_MAX else 0
        return self.emit(make_const(dtype, coerce(dtype, value)))

    cdef Node identity(self, Node q, int lane, DType dtype):
        """What a reduction starts from, in as many lanes as it has."""
        cdef Node start = self.nothing(q, dtype)
        if lane < 0:
            lane = (<Info>self.infos[q.src[0]]).lane
        return start if lane < 0 else self.wide(start, self.lanes_of_leaf[lane])

    cdef Node combine(self, Node q, Node a, Node b):
        cdef int op = int(q.arg[0])
        if q.dtype is types.BOOL:
            op = OP_AND if op == OP_MUL else OP_OR
        return self.emit(make2(op, a.dtype, a, b))

    cdef Node accumulate(self, Node q, Node total, int lane):
        """One step of a reduction. The product and the sum of a float are fused.

        Where a sum adds a value under a condition, it stays as it is if that does not hold.
        """
        cdef Node value = q.src[0], condition = None, new
        cdef int64_t lanes = lanes_of(total)
        cdef bint is_sum = int(q.arg[0]) == OP_ADD
        if is_sum and value.c_op == OP_WHERE and is_zero(value.src[2]):
            condition, value = self.value(value.src[0]), value.src[1]
            if condition.c_op == OP_CONST:
                if not condition.arg:
                    return total
                condition = None
        condition = self.both(condition, self.idle(lane))
        if value.c_op == OP_WMMA:
            new = self.emit(make(
                OP_WMMA, q.dtype, (
                    total, self.wide(self.value(value.src[0]), lanes),
                    self.wide(self.value(value.src[1]), lanes),
                ), value.arg, None,
            ))
        elif (
            is_sum and value.c_op == OP_MUL and total.dtype is q.dtype
            and q.dtype.c_kind == c"f" and q.dtype.bitsize >= 32
        ):
            new = self.emit(make3(
                OP_MULACC, q.dtype, self.wide(self.value(value.src[0]), lanes),
                self.wide(self.value(value.src[1]), lanes), total,
            ))
        else:
            new = self.wide(self.value(value), lanes)
            new = self.combine(q, total, self.as_dtype(new, total.dtype))
        if condition is None:
            return new
        return self.emit(make3(OP_WHERE, new.dtype, self.wide(condition, lanes), new, total))

    cdef Node tree(self, Node q, list values):
        """Several values combined two by two."""
        cdef Py_ssize_t k
        cdef list pairs
        while len(values) > 1:
            pairs = [
                self.combine(q, values[k], values[k + 1]) for k in range(0, len(values) - 1, 2)
            ]
            values = pairs + values[2 * len(pairs):]
        return values[0]

    cdef Node horizontal(self, Node q, Node x):
        """The lanes of a vector combined: its two halves as vectors, again and again."""
        cdef list rest = []
        cdef Py_ssize_t count, half
        cdef Node low, high
        while x.c_shape:
            count = lanes_of(x)
            half = count // 2
            if count % 2:
                rest.append(self.lane(x, count - 1))
            if half == 1:
                x = self.combine(q, self.lane(x, 0), self.lane(x, 1))
            else:
                low = self.shuffle(tuple(range(half)), (x,))
                high = self.shuffle(tuple(range(half, 2 * half)), (x,))
                x = self.combine(q, low, high)
        return self.tree(q, [x, *rest])

    # ------------------------------------------------------------ scans

    cdef ScanPlan plan_scan(self, Node q, Info info):
        cdef ScanPlan plan = ScanPlan()
        cdef Node r
        plan.tile = plan.lane = -1
        plan.has_factors = int(q.arg[0]) == OP_MULACC
        for r in q.src[2 if plan.has_factors else 1:]:
            plan.axis = self.axis_of_leaf[r.arg[0]]
            if r.arg[0] in self.axis_of_lane:
                plan.lane = r.arg[0]
            elif r.arg[0] in self.tile_place:
                plan.tile = self.tile_place[r.arg[0]]
        plan.others = tuple([k for k in info.tiles if k != plan.tile])
        return plan

    cdef bint is_scanned(self, LoopPlan loop):
        """Whether SCANs go along a loop."""
        for plan in self.scans.values():
            if (<ScanPlan>plan).axis == loop.axis:
                return True
        return False

    cdef int nest_scan(self, LoopPlan loop, list bodies, list inner) except -1:
        """A loop that SCANs go along: its iterations hand on in registers what they came to."""
        cdef list every = [], registers
        cdef Accumulator a
        cdef ScanPlan plan
        cdef Body body
        cdef Node q, start
        cdef int lane
        for q, plan in self.scans.items():
            start, lane = self.nothing(q, self.rules.carry(q)), (<Info>self.infos[q]).lane
            if lane >= 0 and plan.lane < 0:
                start = self.wide(start, self.lanes_of_leaf[lane])
            self.begin(plan.others)
            while True:
                a = self.carries[q, self.key(plan.others)] = Accumulator()
                a.value = start
                every.append(a)
                if not self.advance(plan.others):
                    break
        for body in bodies:
            registers = [] if body.count is None else self.registers_for(every)
            self.enter(loop, body)
            self.go_on_from(registers, every)
            self.nest(inner)
            self.leave_with(registers, every)
        self.carries = {}
        return 0

    cdef Node scan(self, Node q, Info info):
        """A SCAN at the combination; it is computed for all of its tile at once.

        Lanes and steps along its own axis are combined by themselves first, and then with what
        was before: from one iteration to the next it takes one operation. Products are so in the
        wide dtype, since those of a part may overflow where the whole does not.
        """
        cdef ScanPlan plan = self.scans[q]
        cdef Accumulator carry = self.carries.get((q, self.key(plan.others)))
        cdef int64_t lanes = 1 if info.lane < 0 else self.lanes_of_leaf[info.lane], k
        cdef int64_t steps = 1 if plan.tile < 0 else self.counts[plan.tile]
        cdef int64_t here = 0 if plan.tile < 0 else self.at[plan.tile]
        cdef bint is_product = int(q.arg[0]) == OP_MUL
        cdef Node total, x, before, inner = None
        cdef DType dtype
        cdef bint in_order
        if carry is not None:
            total = carry.value
        else:
            total = self.nothing(q, self.rules.carry(q) if is_product else q.dtype)
        in_order = plan.lane < 0 and (steps == 1 or total.dtype is q.dtype or plan.has_factors)
        dtype = total.dtype if in_order or is_product else q.dtype
        before = None if in_order else self.wide(self.as_dtype(total, dtype), lanes)
        total = total if plan.lane >= 0 else self.wide(total, lanes)
        for k in range(steps):
            if plan.tile >= 0:
                self.at[plan.tile] = k
            x = self.as_dtype(self.wide(self.value(q.src[0]), lanes), dtype)
            if in_order:
                if plan.has_factors:
                    factor = self.as_dtype(self.wide(self.value(q.src[1]), lanes), dtype)
                    total = self.emit(make3(OP_MULACC, dtype, factor, total, x))
                else:
                    total = self.combine(q, total, x)
                self.remember(q, self.as_dtype(total, q.dtype))
                continue
            if plan.lane >= 0:
                x = self.prefixes(q, x)
            if inner is not None:
                x = self.combine(q, self.wide(inner, lanes), x)
            self.remember(q, self.as_dtype(self.combine(q, before, x), q.dtype))
            inner = self.lane(x, lanes - 1) if plan.lane >= 0 else x
        if not in_order:
            total = self.combine(q, total, self.as_dtype(inner, total.dtype))
        if carry is not None:
            carry.value = total
        if plan.tile >= 0:
            self.at[plan.tile] = here
        return self.known(q)

    cdef Node prefixes(self, Node q, Node x):
        """Each lane of a vector combined with all before it.

        Pairs of neighbours, then of pairs, and so on: the second of two takes up what the first
        came to (Sklansky, "Conditional-sum addition logic", 1960).
        """
        cdef int64_t lanes = lanes_of(x), part = 1, k
        cdef Node nothing = self.wide(self.nothing(q, x.dtype), lanes)
        cdef list picked
        while part < lanes:
            picked = [
                k // part * part - 1 if k // part % 2 else lanes + k for k in range(lanes)
            ]
            x = self.combine(q, self.shuffle(tuple(picked), (x, nothing)), x)
            part *= 2
        return x


# ---------------------------------------------------------------- constants


cdef bint is_constant(Node x):
    return x is not None and x.c_op == OP_CONST


cdef bint is_zero(Node x):
    return x.c_op == OP_CONST and x.arg == 0


cdef Node plus(Node a, int64_t b):
    return make2(OP_ADD, types.INDEX, a, make_int(types.INDEX, b))


cdef Node quotient(Node a, int64_t b):
    return make2(OP_FLOORDIV, types.INDEX, a, make_int(types.INDEX, b))


cdef list members_of(object numbers):
    """The members of a set, smallest first."""
    cdef list found = []
    while numbers:
        low = numbers & -numbers
        found.append(low.bit_length() - 1)
        numbers ^= low
    return found


cdef list known_lanes(Node x, int64_t lanes):
    """The integers in the lanes of a value, if they are known; else None."""
    cdef Node s
    if x.dtype is not types.INDEX and x.dtype is not types.BOOL:
        return None
    if x.c_op == OP_CONST:
        return [x.arg] * lanes
    if x.c_op == OP_STACK:
        for s in x.src:
            if s.c_op != OP_CONST:
                return None
        return [(<Node>s).arg for s in x.src]
    return None


# Of indices and conditions only: they are exact, and where tiles have made them constants the
# rest of an address or a gate depends on it. Quotients are of numbers that are not negative.

cdef bint folds(int op):
    return op in (
        OP_ADD, OP_MUL, OP_FLOORDIV, OP_FLOORMOD, OP_CDIV, OP_CMOD, OP_SHR, OP_MAX, OP_AND, OP_OR,
        OP_XOR, OP_CMPLT, OP_CMPNE, OP_CMPEQ, OP_WHERE,
    )


cdef object fold(int op, tuple x):
    if op == OP_WHERE:
        return x[1] if x[0] else x[2]
    a, b = x
    if op == OP_ADD:
        return a + b
    if op == OP_MUL:
        return a * b
    if op == OP_FLOORDIV or op == OP_CDIV:
        return a // b if b else 0
    if op == OP_FLOORMOD or op == OP_CMOD:
        return a % b if b else 0
    if op == OP_SHR:
        return a >> b
    if op == OP_MAX:
        return max(a, b)
    if op == OP_AND:
        return a & b
    if op == OP_OR:
        return a | b
    if op == OP_XOR:
        return a ^ b
    if op == OP_CMPLT:
        return a < b
    if op == OP_CMPNE:
        return a != b
    return a == b


def linear_form(Node index not None):
    """(constant, ((term, factor), …)) of an index: a sum of multiples of terms.

    A term is a RANGE, or a node that no sum can see into; in order of first appearance.
    """
    cdef Form form = form_of(index)
    return form.constant, tuple(zip(form.terms, form.factors))


def expand(kernel, Node sink not None, rules, tuple conditions=()):
    """[(operations in execution order (level 4), steps that threads share)], phase by phase.

    `kernel` is a TiledKernel, `sink` its graph with flat offsets and nothing that the target
    lacks, `conditions` are those of its loops as they are there. `rules` say how sums are cut:
    `separate`, `levels`, `strip` and `dtype` of `SumRules`.
    ValueError for what is no kernel.
    """
    return Expansion(kernel, sink, rules, conditions).run()
