"""Runs one of mpi4py's test modules again and again in one job, where the start of a job takes longest.

    mpiexec -n 2 python repeat.py build/mpi4py/test util_sync 50

Exit status 1 at the first run that fails.
"""

import sys
import unittest


def main():
    folder, module, times = sys.argv[1], f"test_{sys.argv[2]}", int(sys.argv[3])
    sys.path.insert(0, folder)
    for number in range(times):
        result = unittest.TextTestRunner(verbosity=0).run(unittest.defaultTestLoader.loadTestsFromName(module))
        if not result.wasSuccessful() or result.testsRun == 0:
            print(f"failed in run {number + 1} of {times}", flush=True)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
