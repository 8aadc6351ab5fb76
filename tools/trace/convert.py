#!/usr/bin/env python3
"""Makes a trace of the raw records of page_trace.c, or checks a trace. README.md says how traces look.

    convert.py RAW OUT.trace [--window PERCENT] [--records N]   makes a trace, not yet compressed
    convert.py --check FILE.trace.zst                           reads one, and says what is in it
"""

import argparse, array, collections, os, subprocess, sys

READ, WRITE, THREAD, FREED = range(4)  # kinds in a trace
RAW_FREED = 2
PAGES_PER_RANGE = 512


def raw_records(path):
    """(kind, page, thread, count) of each raw record; the count is of pages freed."""
    freed = None
    with open(path, "rb") as file:
        while chunk := file.read(8 << 16):
            for word in array.array("Q", chunk[: len(chunk) & -8]):
                if freed is not None:
                    yield FREED, freed, 0, word
                    freed = None
                elif word >> 60 == RAW_FREED:
                    freed = word & (1 << 40) - 1
                else:
                    yield word >> 60, word & (1 << 40) - 1, word >> 40 & 0xFFFF, 0


def take(live, first, count):
    """Takes the pages of a range out of a dict, and returns them in order. A range may be far larger than the dict."""
    if count < len(live):
        pages = [page for page in range(first, first + count) if page in live]
    else:
        pages = sorted(page for page in live if first <= page < first + count)
    for page in pages:
        del live[page]
    return pages


def lives_written(path):
    """A page lives from its first touch until it is freed. For each page, which of its lives saw a write.

    Only these are wanted: what is never written is a file, or code, or zeros."""
    written, live, count = collections.defaultdict(set), {}, collections.Counter()
    for kind, page, _, pages in raw_records(path):
        if kind == FREED:
            for old in take(live, page, pages):
                count[old] += 1
        elif kind == WRITE:
            if live.get(page) != WRITE:
                live[page] = WRITE
                written[page].add(count[page])
        elif page not in live:
            live[page] = READ
    return written


def filtered(path, window, limit):
    """The records to keep, as (kind, page, thread, pages freed), the pages still by address."""
    written = lives_written(path)
    window = max(1, int(len(written) * window / 100))
    # A page that is always among the recent ones would be recorded once, and look unused ever after. So it is
    # recorded again now and then: often enough to be hot in any memory of interest, too seldom to cost much.
    again = max(window, len(written) // 8)
    recent = collections.OrderedDict()  # page: (kind, how many touches were kept when it was)
    live, life, kept, touches = {}, collections.Counter(), [], 0
    for kind, page, thread, count in raw_records(path):
        if kind == FREED:
            gone = []
            for old in take(live, page, count):
                if life[old] in written[old]:
                    gone.append(old)
                life[old] += 1
                recent.pop(old, None)
            if gone:
                kept.append((FREED, 0, 0, gone))
            continue
        live[page] = True
        if page not in written or life[page] not in written[page]:
            continue
        known = recent.get(page)
        if known and known[0] >= kind and touches - known[1] < again:
            recent.move_to_end(page)
            continue
        recent[page] = kind, touches
        recent.move_to_end(page)
        if len(recent) > window:
            recent.popitem(last=False)
        kept.append((kind, page, thread, None))
        touches += 1
        if touches == limit:
            break
    return kept


def numbers(kept):
    """The number of each range of 2 MiB that is touched, in order of address."""
    number, next_number, previous = {}, 0, None
    for place in sorted({page // PAGES_PER_RANGE for kind, page, _, _ in kept if kind != FREED}):
        # Without a gap between them, a walk would seem to go on from one mapping to the next.
        if previous is not None and place != previous + 1:
            next_number += 1
        number[place] = next_number
        next_number, previous = next_number + 1, place
    return number


def leb128(out, value):
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def zigzag(value):
    return value << 1 if value >= 0 else (-value << 1) - 1


def encoded(kept):
    number = numbers(kept)
    dense = lambda page: number[page // PAGES_PER_RANGE] * PAGES_PER_RANGE + page % PAGES_PER_RANGE
    out, previous, current, largest, threads = bytearray(), 0, 0, 0, {}
    for kind, page, thread, gone in kept:
        if kind == FREED:
            runs = []
            for page in gone:
                # What lies between two pages of a freed range is freed, touched or not, if it has numbers.
                if runs and dense(page) - dense(runs[-1][0]) == page - runs[-1][0]:
                    runs[-1][1] = page
                else:
                    runs.append([page, page])
            for first, last in runs:
                leb128(out, zigzag(dense(first) - previous) << 2 | FREED)
                leb128(out, last - first + 1)
            continue
        thread = threads.setdefault(thread, len(threads))
        if thread != current:
            leb128(out, thread << 2 | THREAD)
            current = thread
        page = dense(page)
        leb128(out, zigzag(page - previous) << 2 | kind)
        previous, largest = page, max(largest, page)
    return b"hugeswap-trace 1 %d\n" % (largest + 1) + out


def trace_records(path):
    """The number of pages, then (kind, page or thread, count) of each record."""
    data = open(path, "rb").read()
    if path.endswith(".zst"):
        data = subprocess.run(["zstd", "-dcq"], input=data, stdout=subprocess.PIPE, check=True).stdout
    header, data = data.split(b"\n", 1)
    words = header.split(b" ")
    if words[:2] != [b"hugeswap-trace", b"1"] or len(words) != 3:
        sys.exit(f"{path}: no header of a trace")
    yield int(words[2])
    values = iter(data)

    def varint():
        value, shift = 0, 0
        for byte in values:
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
        if shift:
            sys.exit(f"{path}: ends within a number")
        return None

    page = 0
    while (value := varint()) is not None:
        kind, n = value & 3, value >> 2
        if kind == THREAD:
            yield kind, n, 0
            continue
        at = page + (n >> 1 if n & 1 == 0 else -(n + 1 >> 1))
        if kind == FREED:
            count = varint()
            if not count:
                sys.exit(f"{path}: pages freed, but none")
            yield kind, at, count
        else:
            page = at
            yield kind, page, 1


def check(path):
    records = trace_records(path)
    pages = next(records)
    records = list(records)
    threads, touched, writes, freed, touches = {0}, set(), 0, 0, 0
    for kind, n, count in records:
        if kind == THREAD:
            threads.add(n)
            continue
        if n < 0 or n + count > pages:
            sys.exit(f"{path}: page {n}, of {pages}")
        if kind == FREED:
            freed += count
        else:
            touched.add(n)
            touches += 1
            writes += kind == WRITE
    if not touches:
        sys.exit(f"{path}: no touches")
    print(f"{os.path.basename(path)}: {os.path.getsize(path)} bytes, {len(records)} records, {touches} touches")
    print(f"  {pages} page numbers, {len(touched)} pages touched, {freed} freed, {len(threads)} threads")
    print(f"  {100 * writes / touches:.0f} % writes")
    for name, share in ("1/3", 1 / 3), ("1/2", 1 / 2), ("3/4", 3 / 4):
        first, again = misses(records, int(len(touched) * share))
        print(f"  LRU, {name} of the pages: {again} misses, beyond {first} first touches")


def misses(records, memory):
    resident, known, first, again = collections.OrderedDict(), {}, 0, 0
    for kind, n, count in records:
        if kind == FREED:
            for page in take(known, n, count):
                resident.pop(page, None)
        elif kind != THREAD:
            if n in resident:
                resident.move_to_end(n)
                continue
            if n in known:
                again += 1
            else:
                first += 1
                known[n] = True
            resident[n] = True
            if len(resident) > memory:
                resident.popitem(last=False)
    return first, again


def main():
    if sys.argv[1:2] == ["--check"]:
        for path in sys.argv[2:]:
            check(path)
        return
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("raw")
    parser.add_argument("out")
    parser.add_argument("--window", type=float, default=2)
    parser.add_argument("--records", type=int)
    words = parser.parse_args()
    kept = filtered(words.raw, words.window, words.records)
    if not kept:
        sys.exit(f"{words.raw}: no memory that was written")
    with open(words.out, "wb") as out:
        out.write(encoded(kept))


main()
