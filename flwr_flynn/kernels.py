"""The compiled loops of the hash.

A hash is the `hash_nnz` largest of m sums, each over s columns of one point. Points are taken LANES at a time and stored
column by column, so that one vector instruction adds the same column of all of them; a row of M then costs s vector adds
and one comparison with the lanes' running thresholds. Only sums above their threshold are looked at again, and the
(n, m) matrix of sums never exists.

Selection, per lane: rows come in ascending order, so a sum that merely equals the threshold has already lost to earlier
rows (higher value first, then lower row index), and "greater than" is the whole test. Accepted sums go to a short list
and into a histogram that tells when the threshold may rise; when the list is full, it is cut down to the `hash_nnz` best.
All of it works on exact values and stable order, so neither the histogram's resolution nor the size of the list can
change a result.

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

    Stores that row's sums in `sums` and the bits of the lanes above in `lanes_above[0]`. `points` holds one vector of lanes
    per column, `columns` is (m, s). Written in LLVM because a Numba loop keeps the accumulators in memory; LLVM splits the
    vectors into whatever registers the machine has.

    uint8 points have int16 sums: lane i of the first half is byte 2 i and lane i of the second half byte 2 i + 1. Read as
    16-bit words a column is even + 256 odd, so the total of the words and the total of their high bytes give both
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
def winners_counting(blocks, columns, hash_nnz, n_points, low, width, sums, out):  # type: ignore[no-untyped-def]
    """Active bits of points whose sums are whole numbers in a known, narrow range.

    Each lane keeps a histogram with one cell per number. Its threshold is the hash_nnz-th largest sum so far, at every
    moment, so as few sums as possible are looked at.

    Parameters
    ----------
    blocks : (n_blocks, n_columns, lanes) array
        The points, column by column; lanes = `LANES` of the dtype. Unused lanes of the last block must be zero.
    columns : (m, s) uint16 or uint32 array
        For each row of M the columns to add, in the order in which they are added.
    hash_nnz : int
        Winners per point.
    n_points : int
        Points in all blocks.
    low, width : int
        Every sum s satisfies low <= s < low + width, and low - 1 fits the dtype of the sums.
    sums : (lanes,) array
        Work space; its dtype is that of the sums.
    out : (n_points, hash_nnz) int32 array
        Receives the active bits, ascending.
    """
    n_blocks, _, lanes = blocks.shape
    one, value_bits, value_mask = np.uint64(1), np.uint64(16), np.uint64(0xFFFF)
    m = np.uint64(columns.shape[0])
    capacity = np.uint64(min(columns.shape[0], 4 * hash_nnz + 64))
    cells = np.uint64(width)
    threshold = np.empty_like(sums)
    lanes_above = np.empty(1, np.uint64)
    entries = np.empty(np.uint64(lanes) * capacity, np.uint64)  # accepted (row, sum - low), per lane in row order
    end = np.empty(lanes, np.uint64)  # where the lane's entries end
    histogram = np.empty(np.uint64(lanes) * cells, np.int32)
    above = np.empty(lanes, np.int64)  # sums so far above the threshold, always fewer than hash_nnz

    for block in range(n_blocks):
        points = blocks[block]
        threshold[:] = low - 1
        histogram[:] = 0
        above[:] = 0
        for lane in range(lanes):
            end[lane] = np.uint64(lane) * capacity
        row = _next_hit(points, columns, np.uint64(0), threshold, sums, lanes_above)
        while row < m:
            bits = lanes_above[0]
            while bits != np.uint64(0):
                lane = _lowest_bit(bits)
                bits &= bits - one
                value = np.uint64(np.int64(sums[lane]) - low)
                n = end[lane]
                entries[n] = (row << value_bits) | value
                n += one
                histogram[lane * cells + value] += 1
                count = above[lane] + 1
                if count >= hash_nnz:
                    cut = np.int64(threshold[lane]) - low
                    while count >= hash_nnz:
                        cut += 1
                        count -= histogram[lane * cells + np.uint64(cut)]
                    threshold[lane] = cut + low
                above[lane] = count
                if n == (lane + one) * capacity and capacity < m:
                    cut = np.int64(threshold[lane]) - low
                    ties = hash_nnz - count
                    n = lane * capacity
                    for i in range(n, n + capacity):
                        value = entries[i] & value_mask
                        if np.int64(value) > cut:
                            entries[n] = entries[i]
                            n += one
                        elif np.int64(value) == cut and ties > 0:
                            ties -= 1
                            entries[n] = entries[i]
                            n += one
                end[lane] = n
            row = _next_hit(points, columns, row + one, threshold, sums, lanes_above)
        for lane in range(min(lanes, n_points - block * lanes)):
            cut = np.int64(threshold[lane]) - low
            ties = hash_nnz - above[lane]
            k = 0
            for i in range(np.uint64(lane) * capacity, end[lane]):
                value = np.int64(entries[i] & value_mask)
                if value > cut or (value == cut and ties > 0):
                    if value == cut:
                        ties -= 1
                    out[block * lanes + lane, k] = entries[i] >> value_bits
                    k += 1


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
def _bucket(value, origin, density):  # type: ignore[no-untyped-def]
    """Histogram bucket of a sum: never decreasing in `value`, whatever the rounding."""
    position = (np.float64(value) - origin) * density
    if position >= _BUCKETS - 1.0:
        return np.int64(_BUCKETS - 1)
    return np.int64(position) if position > 0.0 else np.int64(0)


@njit(nogil=True, cache=True)
def winners(blocks, columns, hash_nnz, n_points, floor, sums, out):  # type: ignore[no-untyped-def]
    """Active bits of any points: `winners_counting` for sums of any kind or range.

    A lane takes the sums of its first rows as they come. When its list is full for the first time, it is cut down to the
    hash_nnz best and a histogram over the range just above them takes over. Buckets are wider than one value here: the
    threshold stays below all of the bucket that holds the hash_nnz-th largest sum, and the last cut is made by selection.

    Parameters
    ----------
    blocks, columns, hash_nnz, n_points, sums, out
        As in `winners_counting`; unused lanes may hold anything finite.
    floor : (1,) array of the dtype of the sums
        A value below every sum.
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
        threshold[:] = floor[0]
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
