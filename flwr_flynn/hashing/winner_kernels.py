"""Compiled loops of the hash.

A hash is the `hash_nnz` largest of m sums, each over s columns of one sample. Samples
are taken LANES at a time and stored column by column, so that one vector instruction
adds the same column of all of them. A row of M then costs s vector adds and one
comparison with the running thresholds of the lanes. Only sums above their threshold are
looked at again, and the (n, m) matrix of sums never exists.

Rows come in ascending order, so a sum that merely equals the threshold of its lane has
already lost to earlier rows: "greater than" is the whole test. Accepted sums go to a
short list and into a histogram that tells when the threshold may rise. A full list is
cut down to the `hash_nnz` best. Values are exact and the order is stable, so neither
the histogram's resolution nor the size of the list can change a result.

Blocks are int8, int16, float32 or int64 with sums of the same dtype, or uint8 with
int16 sums: two lanes share a 16-bit add. All kernels stand in one file on purpose:
Numba's cache on disk notices a change of the file of a function, but not a change of
the file of a function that it calls.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

# Samples per block: one or two vector registers' worth of sums, and at most 64, so that
# a comparison fits one word.
LANES = {"int8": 64, "uint8": 64, "int16": 64, "float32": 32, "int64": 16}

_UNROLL = 8  # columns per turn of the inner loop
_FIRST_ROWS = 32  # one row in this many is among the first ones
_FIRST_CELLS = 256  # of the histogram of one lane for these, at most


def accumulator(block_dtype: npt.DTypeLike) -> np.dtype[Any]:
    """Return the dtype of the sums of a block of `block_dtype`."""
    dtype = np.dtype(block_dtype)
    if dtype == np.uint8:
        return np.dtype(np.int16)
    return dtype


@intrinsic
def _next_hit(typingctx, samples, columns, row, threshold, sums, lanes_above):
    """Find the first row of M, from `row` on, where the sum of a lane exceeds its
    threshold.

    It is m if there is none.

    Stores the sums of that row in `sums`, and the lanes above as the bits of
    `lanes_above[0]`. `samples` holds one vector of lanes per column, `columns` is (m,
    s). LLVM, because a Numba loop keeps the accumulators in memory.

    uint8 samples have int16 sums: lane i of the first half is byte 2 i and lane i of
    the second half byte 2 i + 1. Read as 16-bit words a column is even + 256 odd, so
    the total of the words and the total of their high bytes give both sums, exactly:
    each total is taken modulo 2**16 and the sums fit in 15 bits.
    """
    signature = types.uint64(
        samples, columns, types.uint64, threshold, sums, lanes_above
    )

    def codegen(context, builder, signature, args):
        samples_type = signature.args[0].dtype
        sum_type = signature.args[3].dtype
        packed = samples_type != sum_type
        is_float = isinstance(sum_type, types.Float)
        lanes = LANES[str(samples_type)]
        # Lanes of one accumulator.
        if packed:
            width = lanes // 2
        else:
            width = lanes
        vector = ir.VectorType(context.get_data_type(sum_type), width)
        index = ir.IntType(64)
        if packed:
            alignment = 1
        else:
            alignment = sum_type.bitwidth // 8

        def constant(value):
            return ir.Constant(index, value)

        def array(position):
            return context.make_array(signature.args[position])(
                context, builder, args[position]
            )

        def vectors(position):
            return builder.bitcast(array(position).data, vector.as_pointer())

        def load_vector(base, k):
            value = builder.load(builder.gep(base, [k]))
            value.align = alignment
            return value

        m, row_nnz = (builder.extract_value(array(1).shape, axis) for axis in (0, 1))
        first_column = array(1).data
        base = vectors(0)
        results = vectors(4)
        halves = range(1)
        if packed:
            halves = range(2)
        thresholds = [load_vector(vectors(3), constant(half)) for half in halves]
        eight = None
        if packed:
            eight = ir.Constant(vector, [8] * width)

        def parts(value):
            if packed:
                return [value, builder.lshr(value, eight)]
            return [value]

        def loop(name, k, totals, step):
            """Add `step` columns while k + step <= s; leave the builder after the loop."""
            before = builder.block
            head, body, after = (
                builder.append_basic_block(name + part)
                for part in ("", ".body", ".end")
            )
            builder.branch(head)
            builder.position_at_end(head)
            k_phi = builder.phi(index)
            phis = [builder.phi(vector) for _ in totals]
            k_next = builder.add(k_phi, constant(step))
            builder.cbranch(builder.icmp_unsigned("<=", k_next, row_nnz), body, after)
            builder.position_at_end(body)
            inner = list(phis)
            for offset in range(step):
                addend = parts(load(builder.add(k_phi, constant(offset))))
                if is_float:
                    plus = builder.fadd
                else:
                    plus = builder.add
                inner = [
                    plus(total, part) for total, part in zip(inner, addend, strict=True)
                ]
            builder.branch(head)
            for phi, begin, again in zip(
                [k_phi, *phis], [k, *totals], [k_next, *inner], strict=True
            ):
                phi.add_incoming(begin, before)
                phi.add_incoming(again, body)
            builder.position_at_end(after)
            return k_phi, phis

        entry = builder.block
        names = ("rows", "rows.body", "rows.next", "hit", "end")
        rows, row_body, row_next, hit, end = (
            builder.append_basic_block(name) for name in names
        )
        builder.branch(rows)

        builder.position_at_end(rows)
        row = builder.phi(index)
        row.add_incoming(args[2], entry)
        builder.cbranch(builder.icmp_unsigned("<", row, m), row_body, end)

        builder.position_at_end(row_body)
        row_columns = builder.gep(first_column, [builder.mul(row, row_nnz)])

        def load(k):
            column = builder.zext(builder.load(builder.gep(row_columns, [k])), index)
            return load_vector(base, column)

        k, totals = loop("unrolled", constant(1), parts(load(constant(0))), _UNROLL)
        k, totals = loop("rest", k, totals, 1)
        if packed:
            totals[0] = builder.sub(totals[0], builder.shl(totals[1], eight))
        bits = constant(0)
        for half in halves:
            if is_float:
                compare = builder.fcmp_ordered
            else:
                compare = builder.icmp_signed
            above = compare(">", totals[half], thresholds[half])
            word = builder.bitcast(above, ir.IntType(width))
            if width != 64:
                word = builder.zext(word, index)
            bits = builder.or_(bits, builder.shl(word, constant(half * width)))
        builder.cbranch(builder.icmp_unsigned("==", bits, constant(0)), row_next, hit)

        builder.position_at_end(row_next)
        row.add_incoming(builder.add(row, constant(1)), row_next)
        builder.branch(rows)

        builder.position_at_end(hit)
        for half in halves:
            builder.store(
                totals[half], builder.gep(results, [constant(half)])
            ).align = alignment
        builder.store(bits, array(5).data)
        builder.branch(end)

        builder.position_at_end(end)
        return row

    return signature, codegen


@intrinsic
def _lowest_bit(typingctx, word):
    """Return the index of the lowest set bit of a nonzero word."""

    def codegen(context, builder, signature, args):
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(types.uint64), codegen


@njit(nogil=True, cache=True)
def kth_largest(values, n, k):
    """Return the k-th largest (k >= 1) of values[:n], reordering them.

    Hoare's selection, median of three.
    """
    low = np.int64(0)
    high = n - 1
    target = k - 1  # position in descending order
    while low < high:
        a = values[low]
        b = values[(low + high) >> 1]
        c = values[high]
        pivot = max(min(a, b), min(max(a, b), c))
        i = low
        j = high
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
def keep_best(values, rows, n, k, scratch):
    """Keep the k best of the first n (value, row) pairs, in order.

    Return the k-th largest value.
    """
    for i in range(n):  # assigning slices compiles for seconds
        scratch[i] = values[i]
    cut = kth_largest(scratch, n, k)
    ties = k
    for i in range(n):
        ties -= values[i] > cut
    n_winners = 0
    for i in range(n):
        value = values[i]
        if value > cut or (value == cut and ties > 0):
            if value == cut:
                ties -= 1
            values[n_winners] = value
            rows[n_winners] = rows[i]
            n_winners += 1
    return cut


@njit(nogil=True, cache=True)
def approximate(X, row_nnz, signed, levels, out, slack, crowding):
    """Approximate samples by integers 0 .. levels, each sample on a scale of its own,
    and bound the error of sums.

    `out`, (n, d) integers: (x - low) / step, rounded; low is the smallest value, or
    minus the largest magnitude if signed, so that levels - out approximates the negated
    value. `slack`, (n,) int64: steps by which a sum must lie below a second one to be
    smaller for certain, whatever is rounded here and in the exact float32 sums.
    `crowding`, (n,) float64: the slack in standard deviations of the sums of the
    sample.
    """
    n, d = X.shape
    for i in range(n):
        x = X[i]
        low = np.float64(x[0])
        high = np.float64(x[0])
        total = 0.0
        squares = 0.0
        for j in range(d):
            value = np.float64(x[j])
            low = min(low, value)
            high = max(high, value)
            total += value
            squares += value * value
        largest = max(-low, high)
        if signed:
            low = -largest
            high = largest
        step = 1.0
        if high > low:
            step = (high - low) / levels
        error = 0.0
        for j in range(d):
            value = np.float64(x[j])
            level = min(max(np.rint((value - low) / step), 0.0), np.float64(levels))
            error = max(error, abs(value - (low + level * step)))
            out[i, j] = np.int64(level)
        # Rounding in float32: a sum of s terms is off by at most (s - 1) u times the
        # sum of magnitudes, u = 2**-24.
        bound = row_nnz * error + row_nnz * row_nnz * 2.0**-23 * largest
        # One step is for "at least", and one for rounding on this page.
        steps = min(np.floor(2.0 * bound / step), 2.0**30) + 2.0
        slack[i] = np.int64(steps)
        if signed:
            variance = squares / d
        else:
            variance = max(squares / d - (total / d) ** 2, 0.0)
        spread = np.sqrt(row_nnz * variance)
        crowding[i] = steps * step / spread if spread > 0.0 else np.inf


@njit(nogil=True, cache=True)
def winners_counting(
    blocks,
    columns,
    hash_nnz,
    n_samples,
    width,
    shift,
    offset,
    slack,
    exact,
    sums,
    out,
    failed,
):
    """Find the active bits of samples that are small integers, or are approximated by
    small integers.

    A histogram of the sums of each lane tells where the hash_nnz-th largest one lies,
    so that few sums are looked at. Where `blocks` approximates the samples, sums within
    `slack` of that one are kept too, added again from the exact values at the end and
    selected by these: the approximation decides which rows are looked at, never which
    rows win.

    The first rows tell for each lane a bound that, in all likelihood, more than
    hash_nnz sums exceed. Only these are looked at. Lanes where they turn out to be too
    few are searched again without a bound.

    Shapes: `blocks` (n_blocks, n_columns, lanes); `columns` (m, s) uint16 or uint32, in
    the order of the additions; `slack` (n_blocks * lanes,) int64, 0 for exact sums;
    `exact` (n_samples, n_columns) float32, unused for exact sums; `sums` (lanes,), work
    space; `out` (n_samples, hash_nnz) int32, ascending; `failed` (n_samples,) bool, set
    for samples with too many rows within `slack`, whose row of `out` is not written.
    Sums plus `offset` are from 0 to width - 1, below 2**15. A cell of the histogram
    covers 2**shift values; `shift` is 0 unless `blocks` approximates.
    """
    n_blocks, _, lanes = blocks.shape
    row_nnz = columns.shape[1]
    value_bits = np.uint64(16)
    value_mask = np.uint64(0xFFFF)
    capacity = np.uint64(min(columns.shape[0], 4 * hash_nnz + 64))
    cells = np.uint64(((width - 1) >> shift) + 1)
    threshold = np.empty_like(sums)
    bound = np.empty(lanes, np.int64)
    # Accepted pairs of row and sum of each lane, in the order of the rows.
    entries = np.empty(np.uint64(lanes) * capacity, np.uint64)
    end = np.empty(lanes, np.uint64)  # end of the entries of each lane
    histogram = np.empty((np.uint64(lanes), cells), np.int32)
    # Cell in which the hash_nnz-th largest sum so far lies.
    level = np.empty(lanes, np.int64)
    # Sums so far in higher cells, always fewer than hash_nnz.
    above = np.empty(lanes, np.int64)
    values = np.empty(capacity, np.float32)
    rows = np.empty(capacity, np.int32)
    scratch = np.empty(capacity, np.float32)
    head = columns[: columns.shape[0] // _FIRST_ROWS]
    expected = hash_nnz / _FIRST_ROWS  # winners among the first rows
    enough = np.int64(np.ceil(expected + 3.0 * np.sqrt(expected) + 2.0))
    coarse = shift
    while (width >> coarse) >= _FIRST_CELLS:
        coarse += 1
    head_cells = np.empty(
        (np.uint64(lanes), np.uint64(((width - 1) >> coarse) + 1)), np.int32
    )
    pending = np.empty(lanes, np.bool_)  # lanes to be searched

    for block in range(n_blocks):
        samples = blocks[block]
        slacks = slack[block * lanes : (block + 1) * lanes]
        left = min(lanes, n_samples - block * lanes)
        for lane in range(lanes):
            pending[lane] = lane < left
            bound[lane] = -1
        if len(head) > enough:
            _search(samples, head, enough, width, coarse, offset, pending, bound, slacks,
                    sums, threshold, entries, end, head_cells, level, above)  # fmt: skip
            for lane in range(lanes):
                bound[lane] = (
                    max(threshold[lane] + offset - 1, -1) if level[lane] >= 0 else -1
                )
        while left > 0:
            _search(samples, columns, hash_nnz, width, shift, offset, pending, bound, slacks,
                    sums, threshold, entries, end, histogram, level, above)  # fmt: skip
            for lane in range(lanes):
                cut = np.int64(threshold[lane]) + offset
                first = np.uint64(lane) * capacity
                sample = block * lanes + lane
                if not pending[lane]:
                    continue
                if level[lane] == -2:
                    failed[sample] = True
                elif (
                    bound[lane] >= 0
                    and (level[lane] << shift) - slacks[lane] < bound[lane]
                ):
                    bound[lane] = -1
                    continue
                elif slacks[lane] == 0:
                    ties = hash_nnz - above[lane]
                    k = 0
                    for i in range(first, end[lane]):
                        sum_ = np.int64(entries[i] & value_mask)
                        if sum_ > cut or (sum_ == cut and ties > 0):
                            if sum_ == cut:
                                ties -= 1
                            out[sample, k] = entries[i] >> value_bits
                            k += 1
                else:
                    x = exact[sample]
                    n = np.int64(0)  # of a constant 0 keep_best is compiled, too
                    for i in range(first, end[lane]):
                        if np.int64(entries[i] & value_mask) > cut:
                            candidate = entries[i] >> value_bits
                            total = x[columns[candidate, 0]]
                            for j in range(1, row_nnz):
                                total += x[columns[candidate, np.uint64(j)]]
                            values[n] = total
                            rows[n] = candidate
                            n += 1
                    keep_best(values, rows, n, hash_nnz, scratch)
                    for i in range(hash_nnz):
                        out[sample, i] = rows[i]
                pending[lane] = False
                left -= 1


@njit(nogil=True, cache=True)
def _search(
    samples,
    columns,
    hash_nnz,
    width,
    shift,
    offset,
    pending,
    bound,
    slacks,
    sums,
    threshold,
    entries,
    end,
    histogram,
    level,
    above,
):
    """Collect the sums of each pending lane above its threshold, which is its bound at
    first, and rises with the hash_nnz-th largest sum so far.

    At the other lanes no sum is looked at. Shapes as in `winners_counting`; from
    `threshold` on, all are changed. A lane with too many sums within its slack ends at
    level -2.
    """
    one = np.uint64(1)
    value_bits = np.uint64(16)
    value_mask = np.uint64(0xFFFF)
    m = np.uint64(columns.shape[0])
    capacity = np.uint64(len(entries) // len(sums))
    cell_shift = np.uint64(shift)
    for i in range(len(sums)):
        end[i] = np.uint64(i) * capacity
        threshold[i] = (bound[i] if pending[i] else width - 1) - offset
        above[i] = 0
        if pending[i]:
            level[i] = (np.int64(bound[i]) >> shift) - (bound[i] >= 0)
            histogram[i, level[i] + 1 :] = 0
    lanes_above = np.empty(1, np.uint64)
    row = _next_hit(samples, columns, np.uint64(0), threshold, sums, lanes_above)
    while row < m:
        bits = lanes_above[0]
        while bits != np.uint64(0):
            lane = _lowest_bit(bits)
            bits &= bits - one
            value = np.uint64(np.int64(sums[lane]) + offset)
            n = end[lane]
            entries[n] = (row << value_bits) | value
            n += one
            cell = value >> cell_shift
            histogram[lane, cell] += 1
            if np.int64(cell) > level[lane]:
                count = above[lane] + 1
                if count >= hash_nnz:
                    rank = level[lane]
                    while count >= hash_nnz:
                        rank += 1
                        count -= histogram[lane, np.uint64(rank)]
                    level[lane] = rank
                    # The first of equal exact sums win: later ones need not be looked
                    # at.
                    threshold[lane] = max(
                        (rank << shift) - slacks[lane] - offset,
                        np.int64(threshold[lane]),
                    )
                above[lane] = count
            if n == (lane + one) * capacity and capacity < m:
                cut = np.int64(threshold[lane]) + offset
                ties = 0
                if slacks[lane] == 0:
                    ties = hash_nnz - above[lane]
                n = lane * capacity
                for i in range(n, n + capacity):
                    sum_ = np.int64(entries[i] & value_mask)
                    if sum_ > cut or (sum_ == cut and ties > 0):
                        if sum_ == cut:
                            ties -= 1
                        entries[n] = entries[i]
                        n += one
                if n >= (lane + one) * capacity - (capacity >> np.uint64(3)):
                    # No sum is above.
                    threshold[lane] = np.int64(histogram.shape[1] << shift) - 1 - offset
                    level[lane] = -2
            end[lane] = n
        row = _next_hit(samples, columns, row + one, threshold, sums, lanes_above)


@njit(nogil=True, cache=True)
def winners(blocks, columns, hash_nnz, n_samples, extremes, sums, out):
    """Find the active bits of samples of any dtype, where the histogram of
    `winners_counting` would be too large.

    The threshold of a lane rises when its list of sums is full, which is then cut down
    to the hash_nnz best. Shapes are those of `winners_counting`; `extremes` is (2,): a
    value below every sum, and a value that no sum exceeds.
    """
    n_blocks, _, lanes = blocks.shape
    one = np.uint64(1)
    m = np.uint64(columns.shape[0])
    capacity = min(columns.shape[0], 2 * hash_nnz + 64)
    threshold = np.empty_like(sums)
    lanes_above = np.empty(1, np.uint64)
    # Accepted sums and their rows, in the order of the rows.
    values = np.empty((lanes, capacity), sums.dtype)
    rows = np.empty((lanes, capacity), np.int32)
    length = np.empty(lanes, np.uint64)
    scratch = np.empty(capacity, sums.dtype)

    for block in range(n_blocks):
        samples = blocks[block]
        threshold[:] = extremes[0]
        threshold[max(n_samples - block * lanes, 0) :] = extremes[1]
        length[:] = 0
        row = _next_hit(samples, columns, np.uint64(0), threshold, sums, lanes_above)
        while row < m:
            bits = lanes_above[0]
            while bits != np.uint64(0):
                lane = _lowest_bit(bits)
                bits &= bits - one
                n = length[lane]
                values[lane, n] = sums[lane]
                rows[lane, n] = row
                n += one
                if n == np.uint64(capacity) and n < m:
                    threshold[lane] = keep_best(
                        values[lane], rows[lane], capacity, hash_nnz, scratch
                    )
                    n = np.uint64(hash_nnz)
                length[lane] = n
            row = _next_hit(samples, columns, row + one, threshold, sums, lanes_above)
        for lane in range(min(lanes, n_samples - block * lanes)):
            keep_best(
                values[lane], rows[lane], np.int64(length[lane]), hash_nnz, scratch
            )
            for i in range(hash_nnz):
                out[block * lanes + lane, i] = rows[lane, i]
