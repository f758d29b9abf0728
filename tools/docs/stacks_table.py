"""Regenerate the tables of shipped stacks in the docs: `python -m tools.docs.stacks_table`."""

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import yaml

from trainyard.config import CONFIG_KEY
from trainyard.config.cost import cost_items, max_run_usd, usd_per_hour
from trainyard.config.loader import load_settings
from trainyard.config.prices import prices
from trainyard.config.quotas import required_vcpu_quotas
from trainyard.config.settings import StackSettings

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", "docs/deploy.md")
_MARKED = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_LARGEST_ITEMS = 3

Stacks = Mapping[str, StackSettings]


def load_stacks(root: Path) -> Stacks:
    """Return name -> settings of every stack file below `root`."""
    stacks = {}
    for path in sorted((root / "stacks").glob("Pulumi.*.yaml")):
        raw = yaml.safe_load(path.read_text())["config"][CONFIG_KEY]
        stacks[path.name.split(".")[1]] = load_settings(raw, root, f"stacks/{path.name}")
    return stacks


def with_tables(page: str, stacks: Stacks) -> str:
    """Return the page with new tables between `<!-- generated: NAME -->` and `<!-- end -->`."""
    return _MARKED.sub(lambda match: match[1] + TABLES[match[2]](stacks) + match[3], page)


def stacks_table(stacks: Stacks) -> str:
    """Return the table of stacks with their hardware."""
    rows = (
        (
            f"`{name}`",
            f"{settings.nodes} x {settings.instance_type}",
            _gpus(settings),
            _interfaces(settings),
            _capacity(settings),
            _fsx(settings),
        )
        for name, settings in stacks.items()
    )
    return _table(("stack", "workers", "GPUs", "EFA per node", "capacity", "FSx for Lustre"), rows)


def cost_table(stacks: Stacks) -> str:
    """Return the table of costs per hour and until the time limit."""
    rows = (
        (
            f"`{name}`",
            f"{usd_per_hour(settings):,.2f}",
            f"{settings.job.time_limit_minutes:g}",
            f"{max_run_usd(settings):,.2f}",
            _largest_items(settings),
        )
        for name, settings in stacks.items()
    )
    return _table(
        ("stack", "USD an hour", "time limit, minutes", "maximum USD of a run", "largest items, USD an hour"), rows
    )


def quotas_table(stacks: Stacks) -> str:
    """Return the table of required EC2 quotas."""
    rows = (
        (f"`{name}`", quota.name, f"`{quota.code}`", f"{quota.amount}")
        for name, settings in stacks.items()
        for quota in required_vcpu_quotas(settings)
    )
    return _table(("stack", "quota", "code", "vCPUs"), rows)


def prices_table(stacks: Stacks) -> str:
    """Return region and date of the prices, and the price of the key that `destroy` retains."""
    listed = prices()
    rows = (
        ("list prices of", f"{listed.region}, {listed.dated}"),
        ("retained KMS key, USD a month", f"{listed.kms_key_month:.2f}"),
    )
    return _table(("item", "value"), rows)


TABLES: dict[str, Callable[[Stacks], str]] = {
    "stacks": stacks_table,
    "cost": cost_table,
    "quotas": quotas_table,
    "prices": prices_table,
}


def _gpus(settings: StackSettings) -> str:
    gpu = settings.worker_type.gpu
    return f"{settings.nodes * gpu.count} {gpu.model}" if gpu else "none"


def _interfaces(settings: StackSettings) -> str:
    return str(settings.worker_type.efa_interfaces) if settings.efa else "none"


def _capacity(settings: StackSettings) -> str:
    parts = [f"{group.nodes} {group.market}" for group in settings.groups]
    return " + ".join(parts) if len(parts) > 1 else settings.groups[0].market


def _fsx(settings: StackSettings) -> str:
    return f"{settings.fsx.storage_capacity_gib} GiB, {settings.fsx.deployment_type}" if settings.fsx else "none"


def _largest_items(settings: StackSettings) -> str:
    largest = sorted(cost_items(settings), key=lambda item: item.usd_per_hour, reverse=True)[:_LARGEST_ITEMS]
    return "; ".join(f"{item.name}: {item.usd_per_hour:,.2f}" for item in largest)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = (head, tuple("---" for _ in head), *rows)
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    for name in PAGES:
        page = ROOT / name
        page.write_text(with_tables(page.read_text(), load_stacks(ROOT)))
        print(f"updated the tables of {name}")
