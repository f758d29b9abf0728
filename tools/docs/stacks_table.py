"""Regenerate the tables of shipped stacks in the docs: `python -m tools.docs.stacks_table`."""

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import yaml

from trainyard.base import CONFIG_KEY
from trainyard.config.demand import bill, capped_usd, hourly_usd, quotas_needed
from trainyard.config.loader import read_settings
from trainyard.config.prices import prices
from trainyard.config.settings import StackSettings

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", "docs/deploy.md")
_MARKED = re.compile(r"(<!-- made: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_MOST_OF_A_BILL = 3

Stacks = Mapping[str, StackSettings]


def shipped(root: Path) -> Stacks:
    """Name -> settings of every stack below `root`."""
    found = {}
    for path in sorted((root / "stacks").glob("Pulumi.*.yaml")):
        raw = yaml.safe_load(path.read_text())["config"][CONFIG_KEY]
        found[path.name.split(".")[1]] = read_settings(raw, root, f"stacks/{path.name}")
    return found


def filled(page: str, stacks: Stacks) -> str:
    """A page with its tables anew: each stands between `<!-- made: NAME -->` and `<!-- end -->`."""
    return _MARKED.sub(lambda found: found[1] + TABLES[found[2]](stacks) + found[3], page)


def stacks_table(stacks: Stacks) -> str:
    rows = (
        (
            f"`{name}`",
            f"{each.nodes} x {each.instance_type}",
            _gpus(each),
            _interfaces(each),
            _capacity(each),
            _fsx(each),
        )
        for name, each in stacks.items()
    )
    return _table(("stack", "workers", "GPUs", "EFA a node", "capacity", "FSx for Lustre"), rows)


def cost_table(stacks: Stacks) -> str:
    rows = (
        (
            f"`{name}`",
            f"{hourly_usd(each):,.2f}",
            f"{each.job.time_limit_minutes:g}",
            f"{capped_usd(each):,.2f}",
            _most(each),
        )
        for name, each in stacks.items()
    )
    return _table(("stack", "USD an hour", "time limit, minutes", "USD until then", "most of it, USD an hour"), rows)


def quotas_table(stacks: Stacks) -> str:
    rows = (
        (f"`{name}`", need.name, f"`{need.code}`", f"{need.vcpus}")
        for name, each in stacks.items()
        for need in quotas_needed(each)
    )
    return _table(("stack", "quota", "code", "vCPUs"), rows)


def prices_table(stacks: Stacks) -> str:
    """What the figures are of, and the price of what `destroy` leaves."""
    listed = prices()
    rows = (
        ("list prices of", f"{listed.region}, {listed.dated}"),
        ("the KMS key that stays, USD a month", f"{listed.kms_key_month:.2f}"),
    )
    return _table(("what", "value"), rows)


TABLES: dict[str, Callable[[Stacks], str]] = {
    "stacks": stacks_table,
    "cost": cost_table,
    "quotas": quotas_table,
    "prices": prices_table,
}


def _gpus(each: StackSettings) -> str:
    gpu = each.worker_type.gpu
    return f"{each.nodes * gpu.count} {gpu.model}" if gpu else "none"


def _interfaces(each: StackSettings) -> str:
    return str(each.worker_type.efa_interfaces) if each.efa else "none"


def _capacity(each: StackSettings) -> str:
    parts = [f"{group.nodes} {group.market}" for group in each.groups]
    return " + ".join(parts) if len(parts) > 1 else each.groups[0].market


def _fsx(each: StackSettings) -> str:
    return f"{each.fsx.capacity_gib} GiB, {each.fsx.deployment}" if each.fsx else "none"


def _most(each: StackSettings) -> str:
    dearest = sorted(bill(each), key=lambda item: item.hourly, reverse=True)[:_MOST_OF_A_BILL]
    return "; ".join(f"{item.what}: {item.hourly:,.2f}" for item in dearest)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = (head, tuple("---" for _ in head), *rows)
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    for name in PAGES:
        page = ROOT / name
        page.write_text(filled(page.read_text(), shipped(ROOT)))
        print(f"tables made anew in {name}")
