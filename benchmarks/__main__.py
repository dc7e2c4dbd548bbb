"""The command line of the benchmarks."""

from __future__ import annotations

import argparse

from benchmarks import launch, report

_EPILOG = """Each prints Markdown tables on the standard output and its progress on the standard error. What is not
installed or fails is printed as "not measured" with the reason. `pip install -e ".[bench]"` has the peers."""


def main() -> None:
    """Parses and runs one benchmark."""
    parser = argparse.ArgumentParser("python -m benchmarks", description=__doc__, epilog=_EPILOG)
    commands = parser.add_subparsers(dest="command", required=True)
    _launch_options(commands.add_parser("launch", help="two ranks up to their first all-reduce, and the whole run"))
    _report_options(commands.add_parser("report", help="the cost of a report, and when the kernel has it"))
    options = parser.parse_args()
    if options.command == "launch":
        launch.run(options.rounds, options.only)
    else:
        report.run(options.rounds)


def _launch_options(parser: argparse.ArgumentParser) -> None:
    keys = [way.key for way in launch.ways()]
    parser.add_argument("--rounds", type=int, default=20, help="rounds of the fast ways; slow ones take part in some")
    parser.add_argument("--only", nargs="+", choices=keys, default=[], metavar="WAY", help=f"of {', '.join(keys)}")


def _report_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each, pooled")


if __name__ == "__main__":
    main()
