"""python -m tests.mutants: plants every bug, and fails when one survives."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor

from tests import emulator
from tests.mutants import Mutant
from tests.mutants.planted import MUTANTS
from tests.mutants.run import check_whole, judge

WIDTH = 120


def choose(words: list[str], number: int = 1, count: int = 1) -> list[Mutant]:
    """The mutants with one of these words in their sentence or in their file's name; all without words.

    Of these, the share with this number, from 1 on, out of `count` shares.
    """
    found = [each for each in MUTANTS if not words or any(word in f"{each.file} {each.what}" for word in words)]
    return found[number - 1 :: count]


def share(text: str) -> tuple[int, int]:
    """The number of a share, from 1 on, and how many shares there are, out of a text such as 2/8."""
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise argparse.ArgumentTypeError(f"got {text}; wanted such as 2/8, the second of eight shares")
    return int(number), int(count)


def main() -> None:
    """Run the mutants that were asked for, several at a time."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("words", nargs="*", help="only mutants with one of these words in sentence or file")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes; as many as cores")
    shard_help = "only every Nth mutant from the Ith on, to divide them among runs"
    parser.add_argument("--shard", type=share, default=(1, 1), metavar="I/N", help=shard_help)
    options = parser.parse_args()
    if reason := emulator.available():
        sys.exit(reason)
    chosen = choose(options.words, *options.shard)
    tests = sorted({test for mutant in chosen for test in mutant.tests})
    begin = time.monotonic()
    failed = 0
    # Each process builds and runs on its own: the emulator's child process serves one at a time.
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
        for test, verdict in zip(tests, pool.map(check_whole, tests), strict=True):
            if not verdict.is_killed:
                failed += 1
                print(f"FAILS ON THE WHOLE TREE {test}: {verdict.text}", flush=True)
        print(f"{len(tests)} tests pass without a bug, {time.monotonic() - begin:.0f} s", flush=True)
        for mutant, verdict in zip(chosen, pool.map(judge, chosen), strict=True):
            failed += not verdict.is_killed
            word = "killed  " if verdict.is_killed else "SURVIVED"
            print(f"{word} {verdict.seconds:5.1f} s  {mutant.file}: {mutant.what}", flush=True)
            print(f"         {verdict.text if not verdict.is_killed else verdict.text[:WIDTH]}", flush=True)
    print(f"{len(chosen)} bugs planted, {time.monotonic() - begin:.0f} s, {failed or 'none'} not found")
    sys.exit(failed != 0)


if __name__ == "__main__":
    main()
