"""The compiled loops of the hash.

A hash is the `hash_nnz` largest of m sums, each over s columns of one point. Points are taken LANES at a time and
stored column by column, so that one vector instruction adds the same column of all of them; a row of M then costs s
vector adds and one comparison with the lanes' running thresholds. Only sums above their threshold are looked at again,
and the (n, m) matrix of sums never exists.

Selection, per lane: rows come in ascending order, so a sum that merely equals the threshold has already lost to earlier
rows (higher value first, then lower row index), and "greater than" is the whole test. Accepted sums go to a short list
and into a histogram that tells when the threshold may rise; when the list is full, it is cut down to the `hash_nnz`
best. All of it works on exact values and stable order, so neither the histogram's resolution nor the size of the list
can change a result.

Five kinds of block, by dtype of the block and of the sums:

=========  ========  ==========================================================================
block      sums      used for
=========  ========  ==========================================================================
int8       int8      whole numbers whose sums fit 8 bits
uint8      int16     whole numbers 0..255 and sums up to 32767: two lanes share a 16-bit add
int16      int16     other whole numbers whose sums fit 16 bits
float32    float32   everything else
int64      int64     whole numbers whose sums float32 would round
=========  ========  ==========================================================================

Points that are not whole numbers mostly travel as uint8 or int16 too, as an approximation with a known error: see
`winners_counting`.

All of it stands in one file on purpose: Numba's cache on disk notices that the file of a function has changed, but not
that the file of something it calls has.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

# Points per block: one or two vector registers' worth of sums, and at most 64, so that a comparison fits one word.
LANES = {"int8": 64, "uint8": 64, "int16": 64, "float32": 32, "int64": 16}

_UNROLL = 8  # columns per turn of the inner loop
_BUCKETS = 512  # of the histogram of one lane


def accumulator(block_dtype: npt.DTypeLike) -> np.dtype[Any]:
    """Dtype of the sums of a block of `block_dtype`."""
    dtype = np.dtype(block_dtype)
    return np.dtype(np.int16) if dtype == np.uint8 else dtype


@intrinsic
def _next_hit(typingctx, points, columns, row, threshold, sums, lanes_above):  # type: ignore[no-untyped-def]
    """From `row` on, the first row of M of which some lane's sum exceeds its threshold; m if there is none.

    Stores that row's sums in `sums` and the bits of the lanes above in `lanes_above[0]`. `points` holds one vector of
    lanes per column, `columns` is (m, s). Written in LLVM because a Numba loop keeps the accumulators in memory; LLVM
    splits the vectors into whatever registers the machine has.

    uint8 points have int16 sums: lane i of the first half is byte 2 i and lane i of the second half byte 2 i + 1. Read
    as 16-bit words a column is even + 256 odd, so the total of the words and the total of their high bytes give both
    sums, exactly: each total is taken modulo 2**16 and the sums fit in 15 bits.
    """
    signature = types.uint64(points, columns, types.uint64, threshold, sums, lanes_above)

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        points_type, sum_type = signature.args[0].dtype, signature.args[3].dtype
        packed = points_type != sum_type
        is_float = isinstance(sum_type, types.Float)
        lanes = LANES[str(points_type)]
        width = lanes // 2 if packed else lanes  # lanes of one accumulator
        vector = ir.VectorType(context.get_data_type(sum_type), width)
        index = ir.IntType(64)
        alignment = 1 if packed else sum_type.bitwidth // 8

        def constant(value):  # type: ignore[no-untyped-def]
            return ir.Constant(index, value)

        def array(position):  # type: ignore[no-untyped-def]
            return context.make_array(signature.args[position])(context, builder, args[position])

        def vectors(position):  # type: ignore[no-untyped-def]
            return builder.bitcast(array(position).data, vector.as_pointer())

        def load_vector(base, k):  # type: ignore[no-untyped-def]
            value = builder.load(builder.gep(base, [k]))
            value.align = alignment
            return value

        m, row_nnz = (builder.extract_value(array(1).shape, axis) for axis in (0, 1))
        first_column, base, results = array(1).data, vectors(0), vectors(4)
        halves = range(2 if packed else 1)
        thresholds = [load_vector(vectors(3), constant(half)) for half in halves]
        eight = ir.Constant(vector, [8] * width) if packed else None

        def parts(value):  # type: ignore[no-untyped-def]
            return [value, builder.lshr(value, eight)] if packed else [value]

        def loop(name, k, totals, step):  # type: ignore[no-untyped-def]
            """While k + step <= s, add `step` columns; leaves the builder after the loop."""
            before = builder.block
            head, body, after = (builder.append_basic_block(name + part) for part in ("", ".body", ".end"))
            builder.branch(head)
            builder.position_at_end(head)
            k_phi, phis = builder.phi(index), [builder.phi(vector) for _ in totals]
            k_next = builder.add(k_phi, constant(step))
            builder.cbranch(builder.icmp_unsigned("<=", k_next, row_nnz), body, after)
            builder.position_at_end(body)
            inner = list(phis)
            for offset in range(step):
                addend = parts(load(builder.add(k_phi, constant(offset))))
                plus = builder.fadd if is_float else builder.add
                inner = [plus(total, part) for total, part in zip(inner, addend, strict=True)]
            builder.branch(head)
            for phi, begin, again in zip([k_phi, *phis], [k, *totals], [k_next, *inner], strict=True):
                phi.add_incoming(begin, before)
                phi.add_incoming(again, body)
            builder.position_at_end(after)
            return k_phi, phis

        entry = builder.block
        rows = builder.append_basic_block("rows")
        row_body = builder.append_basic_block("rows.body")
        row_next = builder.append_basic_block("rows.next")
        hit = builder.append_basic_block("hit")
        end = builder.append_basic_block("end")
        builder.branch(rows)

        builder.position_at_end(rows)
        row = builder.phi(index)
        row.add_incoming(args[2], entry)
        builder.cbranch(builder.icmp_unsigned("<", row, m), row_body, end)

        builder.position_at_end(row_body)
        row_columns = builder.gep(first_column, [builder.mul(row, row_nnz)])

        def load(k):  # type: ignore[no-untyped-def]
            column = builder.zext(builder.load(builder.gep(row_columns, [k])), index)
            return load_vector(base, column)

        k, totals = loop("unrolled", constant(1), parts(load(constant(0))), _UNROLL)
        k, totals = loop("rest", k, totals, 1)
        if packed:
            totals[0] = builder.sub(totals[0], builder.shl(totals[1], eight))
        bits = constant(0)
        for half in halves:
            above = (
                builder.fcmp_ordered(">", totals[half], thresholds[half])
                if is_float
                else builder.icmp_signed(">", totals[half], thresholds[half])
            )
            word = builder.bitcast(above, ir.IntType(width))
            word = word if width == 64 else builder.zext(word, index)
            bits = builder.or_(bits, builder.shl(word, constant(half * width)))
        builder.cbranch(builder.icmp_unsigned("==", bits, constant(0)), row_next, hit)

        builder.position_at_end(row_next)
        row.add_incoming(builder.add(row, constant(1)), row_next)
        builder.branch(rows)

        builder.position_at_end(hit)
        for half in halves:
            builder.store(totals[half], builder.gep(results, [constant(half)])).align = alignment
        builder.store(bits, array(5).data)
        builder.branch(end)

        builder.position_at_end(end)
        return row

    return signature, codegen


@intrinsic
def _lowest_bit(typingctx, word):  # type: ignore[no-untyped-def]
    """Position of the lowest set bit of a non-zero word."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(types.uint64), codegen


@intrinsic
def _like(typingctx, value, array):  # type: ignore[no-untyped-def]
    """A float64 in the dtype of `array`, rounded as a cast does."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return context.cast(builder, args[0], types.float64, signature.return_type)

    return array.dtype(types.float64, array), codegen


@njit(nogil=True, cache=True)
def _kth_largest(values, n, k):  # type: ignore[no-untyped-def]
    """The k-th largest (k >= 1) of values[:n], which it reorders. Hoare's selection, median of three."""
    low, high = 0, n - 1
    target = k - 1  # position in descending order
    while low < high:
        a, b, c = values[low], values[(low + high) >> 1], values[high]
        pivot = max(min(a, b), min(max(a, b), c))
        i, j = low, high
        while i <= j:
            while values[i] > pivot:
                i += 1
            while values[j] < pivot:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                i += 1
                j -= 1
        if target <= j:
            high = j
        elif target >= i:
            low = i
        else:
            break
    return values[target]


@njit(nogil=True, cache=True)
def _keep_best(values, rows, n, k, scratch):  # type: ignore[no-untyped-def]
    """Keep, in order, the k best of the first n (value, row) pairs; returns the k-th largest value."""
    scratch[:n] = values[:n]
    cut = _kth_largest(scratch, n, k)
    ties = k
    for i in range(n):
        ties -= values[i] > cut
    kept = 0
    for i in range(n):
        value = values[i]
        if value > cut or (value == cut and ties > 0):
            if value == cut:
                ties -= 1
            values[kept] = value
            rows[kept] = rows[i]
            kept += 1
    return cut


@njit(nogil=True, cache=True)
def approximate(X, row_nnz, signed, levels, out, slack, crowding):  # type: ignore[no-untyped-def]
    """Points as whole numbers 0 .. levels, each point on a scale of its own, with what that does to sums.

    Parameters
    ----------
    X : (n, d) float32 array
    row_nnz, signed
        Of the hash.
    levels : int
    out : (n, d) integer array
        Receives (x - low) / step, rounded; low is the smallest value, or minus the largest magnitude if signed, so that
        the negated value is approximated by levels - out.
    slack : (n,) int64 array
        Receives how many steps a sum must lie below another to be smaller for certain, whatever was rounded: here, and
        in float32 when the exact sums are added.
    crowding : (n,) float64 array
        Receives the slack in standard deviations of the point's sums.
    """
    n, d = X.shape
    for i in range(n):
        x = X[i]
        low, high, total, squares = np.float64(x[0]), np.float64(x[0]), 0.0, 0.0
        for j in range(d):
            value = np.float64(x[j])
            low = min(low, value)
            high = max(high, value)
            total += value
            squares += value * value
        largest = max(-low, high)
        if signed:
            low, high = -largest, largest
        step = (high - low) / levels if high > low else 1.0
        error = 0.0
        for j in range(d):
            value = np.float64(x[j])
            level = min(max(np.rint((value - low) / step), 0.0), np.float64(levels))
            error = max(error, abs(value - (low + level * step)))
            out[i, j] = np.int64(level)
        # Rounding in float32: a sum of s terms is off by at most (s - 1) u times the sum of magnitudes, u = 2**-24.
        bound = row_nnz * error + row_nnz * row_nnz * 2.0**-23 * largest
        steps = min(np.floor(2.0 * bound / step), 2.0**30) + 2.0  # one for "at least", one for rounding on this page
        slack[i] = np.int64(steps)
        variance = squares / d if signed else max(squares / d - (total / d) ** 2, 0.0)
        spread = np.sqrt(row_nnz * variance)
        crowding[i] = steps * step / spread if spread > 0.0 else np.inf


@njit(nogil=True, cache=True)
def winners_counting(blocks, columns, hash_nnz, n_points, width, shift, slack, exact, sums, out, failed):  # type: ignore[no-untyped-def]
    """Active bits of points given as small whole numbers, or by approximation of points that are not.

    Each lane keeps a histogram of its sums, and so knows at every moment where the hash_nnz-th largest one lies: few
    sums are ever looked at. Whole numbers are done then. Where `blocks` only approximates the points, sums within
    `slack` of that one are kept too, added again from the exact values at the end, and selected by those: the
    approximation decides which rows are looked at, never which of them win.

    Parameters
    ----------
    blocks : (n_blocks, n_columns, lanes) array
        The points, column by column; lanes = `LANES` of the dtype.
    columns : (m, s) uint16 or uint32 array
        For each row of M the columns to add, in the order in which they are added.
    hash_nnz : int
        Winners per point.
    n_points : int
        Points in all blocks.
    width : int
        All sums lie in 0 .. width - 1; at most 2**15.
    shift : int
        A cell of the histogram holds 2**shift sums; 0 unless `blocks` approximates.
    slack : (n_blocks * lanes,) int64 array
        A row whose sum is at least this far below the hash_nnz-th largest one cannot win; 0 where sums are exact.
    exact : (n_points, n_columns) float32 array
        The points themselves, where `blocks` approximates; anything of that type otherwise.
    sums : (lanes,) array
        Work space; its dtype is that of the sums.
    out : (n_points, hash_nnz) int32 array
        Receives the active bits, ascending.
    failed : (n_points,) bool array
        Set for the points that too many rows come close to winning for; these are left undone.
    """
    n_blocks, _, lanes = blocks.shape
    row_nnz = columns.shape[1]
    one, value_bits, value_mask = np.uint64(1), np.uint64(16), np.uint64(0xFFFF)
    m = np.uint64(columns.shape[0])
    capacity = np.uint64(min(columns.shape[0], 4 * hash_nnz + 64))
    cell_shift = np.uint64(shift)
    cells = np.uint64(((width - 1) >> shift) + 1)
    threshold = np.empty_like(sums)
    lanes_above = np.empty(1, np.uint64)
    entries = np.empty(np.uint64(lanes) * capacity, np.uint64)  # accepted (row, sum), per lane in row order
    end = np.empty(lanes, np.uint64)  # where the lane's entries end
    histogram = np.empty(np.uint64(lanes) * cells, np.int32)
    level = np.empty(lanes, np.int64)  # the hash_nnz-th largest sum so far lies in this cell
    above = np.empty(lanes, np.int64)  # sums so far in higher cells, always fewer than hash_nnz
    values = np.empty(capacity, np.float32)
    rows = np.empty(capacity, np.int32)
    scratch = np.empty(capacity, np.float32)

    for block in range(n_blocks):
        points = blocks[block]
        slacks = slack[block * lanes : (block + 1) * lanes]
        threshold[:] = -1
        histogram[:] = 0
        level[:] = -1
        above[:] = 0
        for i in range(lanes):
            end[i] = np.uint64(i) * capacity
            if block * lanes + i >= n_points:
                threshold[i] = width - 1
        row = _next_hit(points, columns, np.uint64(0), threshold, sums, lanes_above)
        while row < m:
            bits = lanes_above[0]
            while bits != np.uint64(0):
                lane = _lowest_bit(bits)
                bits &= bits - one
                value = np.uint64(sums[lane])
                n = end[lane]
                entries[n] = (row << value_bits) | value
                n += one
                cell = value >> cell_shift
                histogram[lane * cells + cell] += 1
                if np.int64(cell) > level[lane]:
                    count = above[lane] + 1
                    if count >= hash_nnz:
                        rank = level[lane]
                        while count >= hash_nnz:
                            rank += 1
                            count -= histogram[lane * cells + np.uint64(rank)]
                        level[lane] = rank
                        # Among equal exact sums the first ones win: later ones need not be looked at.
                        threshold[lane] = max((rank << shift) - slacks[lane], -1)
                    above[lane] = count
                if n == (lane + one) * capacity and capacity < m:
                    cut = np.int64(threshold[lane])
                    ties = hash_nnz - above[lane] if slacks[lane] == 0 else 0
                    n = lane * capacity
                    for i in range(n, n + capacity):
                        sum_ = np.int64(entries[i] & value_mask)
                        if sum_ > cut or (sum_ == cut and ties > 0):
                            if sum_ == cut:
                                ties -= 1
                            entries[n] = entries[i]
                            n += one
                    if n >= (lane + one) * capacity - (capacity >> np.uint64(3)):
                        threshold[lane] = np.int64(width) - 1
                        level[lane] = -2
                end[lane] = n
            row = _next_hit(points, columns, row + one, threshold, sums, lanes_above)
        for lane in range(min(lanes, n_points - block * lanes)):
            point = block * lanes + lane
            cut = np.int64(threshold[lane])
            first = np.uint64(lane) * capacity
            if level[lane] == -2:
                failed[point] = True
            elif slacks[lane] == 0:
                ties = hash_nnz - above[lane]
                k = 0
                for i in range(first, end[lane]):
                    sum_ = np.int64(entries[i] & value_mask)
                    if sum_ > cut or (sum_ == cut and ties > 0):
                        if sum_ == cut:
                            ties -= 1
                        out[point, k] = entries[i] >> value_bits
                        k += 1
            else:
                x = exact[point]
                k = 0
                for i in range(first, end[lane]):
                    if np.int64(entries[i] & value_mask) > cut:
                        candidate = entries[i] >> value_bits
                        total = x[columns[candidate, 0]]
                        for j in range(1, row_nnz):
                            total += x[columns[candidate, np.uint64(j)]]
                        values[k] = total
                        rows[k] = candidate
                        k += 1
                _keep_best(values, rows, k, hash_nnz, scratch)
                out[point] = rows[:hash_nnz]


@njit(nogil=True, cache=True)
def _bucket(value, origin, density):  # type: ignore[no-untyped-def]
    """Histogram bucket of a sum: never decreasing in `value`, whatever the rounding."""
    position = (np.float64(value) - origin) * density
    if position >= _BUCKETS - 1.0:
        return np.int64(_BUCKETS - 1)
    return np.int64(position) if position > 0.0 else np.int64(0)


@njit(nogil=True, cache=True)
def winners(blocks, columns, hash_nnz, n_points, extremes, sums, out):  # type: ignore[no-untyped-def]
    """Active bits of any points: for sums that `winners_counting` has no histogram for.

    A lane takes the sums of its first rows as they come. When its list is full for the first time, it is cut down to
    the hash_nnz best and a histogram over the range just above them takes over. Buckets are wider than one value here:
    the threshold stays below all of the bucket that holds the hash_nnz-th largest sum, and the last cut is made by
    selection.

    Parameters
    ----------
    blocks, columns, hash_nnz, n_points, sums, out
        As in `winners_counting`; any dtype.
    extremes : (2,) array of the dtype of the sums
        A value below every sum and one that no sum exceeds.
    """
    n_blocks, _, lanes = blocks.shape
    one = np.uint64(1)
    m = np.uint64(columns.shape[0])
    capacity = min(columns.shape[0], 4 * hash_nnz + 64)
    full = np.uint64(capacity)
    threshold = np.empty_like(sums)
    lanes_above = np.empty(1, np.uint64)
    values = np.empty((lanes, capacity), sums.dtype)  # accepted sums and their rows, in row order
    rows = np.empty((lanes, capacity), np.int32)
    length = np.empty(lanes, np.uint64)
    scratch = np.empty(capacity, sums.dtype)
    counting = np.empty(lanes, np.bool_)  # has this lane a histogram yet?
    histogram = np.empty((lanes, _BUCKETS), np.int32)
    origin = np.empty(lanes, np.float64)  # value at which bucket 0 begins
    density = np.empty(lanes, np.float64)  # buckets per unit
    level = np.empty(lanes, np.int64)  # the hash_nnz-th largest sum so far lies in this bucket
    above = np.empty(lanes, np.int64)  # sums so far in higher buckets, always fewer than hash_nnz

    for block in range(n_blocks):
        points = blocks[block]
        threshold[:] = extremes[0]
        threshold[max(n_points - block * lanes, 0) :] = extremes[1]
        length[:] = 0
        counting[:] = False
        row = _next_hit(points, columns, np.uint64(0), threshold, sums, lanes_above)
        while row < m:
            bits = lanes_above[0]
            while bits != np.uint64(0):
                lane = _lowest_bit(bits)
                bits &= bits - one
                value = sums[lane]
                n = length[lane]
                values[lane, n] = value
                rows[lane, n] = row
                n += one
                if counting[lane]:
                    bucket = _bucket(value, origin[lane], density[lane])
                    histogram[lane, np.uint64(bucket)] += 1
                    rank = level[lane]
                    count = above[lane] + (bucket > rank)
                    if count >= hash_nnz:
                        while count >= hash_nnz:
                            rank += 1
                            count -= histogram[lane, np.uint64(rank)]
                        level[lane] = rank
                        # Below all of the bucket: checked rather than reasoned about, so rounding cannot hurt.
                        edge = _like(origin[lane] + (rank - 0.01) / density[lane], sums)
                        if edge > threshold[lane] and _bucket(edge, origin[lane], density[lane]) < rank:
                            threshold[lane] = edge
                    above[lane] = count
                if n == full and full < m:
                    cut = _keep_best(values[lane], rows[lane], capacity, hash_nnz, scratch)
                    n = np.uint64(hash_nnz)
                    threshold[lane] = max(threshold[lane], cut)
                    best = cut
                    for i in range(hash_nnz):
                        best = max(best, values[lane, i])
                    spread = np.float64(best) - np.float64(cut)
                    counting[lane] = True
                    origin[lane] = cut
                    density[lane] = 0.25 * _BUCKETS / (spread if spread > 0.0 else max(abs(np.float64(cut)), 1.0))
                    level[lane] = 0
                    histogram[lane, :] = 0
                    count = 0
                    for i in range(hash_nnz):
                        bucket = _bucket(values[lane, i], origin[lane], density[lane])
                        histogram[lane, bucket] += 1
                        count += bucket > 0
                    above[lane] = count
                length[lane] = n
            row = _next_hit(points, columns, row + one, threshold, sums, lanes_above)
        for lane in range(min(lanes, n_points - block * lanes)):
            _keep_best(values[lane], rows[lane], np.int64(length[lane]), hash_nnz, scratch)
            out[block * lanes + lane] = rows[lane, :hash_nnz]
