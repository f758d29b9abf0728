"""Records of the kernel log, as public bug reports have them, and the rules that they match."""

import os
import threading
from pathlib import Path

import pytest

from trainyard.node.health.kernel_log import KernelLog, find_rule, gpu_name, mark_repaired, parse_record
from trainyard.node.health.sensor import Reading

# (text of a record, name of the rule or None, device), each after its source.
RECORDED = [
    # github.com/NVIDIA/open-gpu-kernel-modules issue 1151
    ("NVRM: Xid (PCI:0000:2b:00): 79, GPU has fallen off the bus.", "gpu-lost", "0000:2b:00"),
    ("NVRM: GPU 0000:2b:00.0: GPU has fallen off the bus.", None, None),
    # github.com/leptonai/gpud components/accelerator/nvidia/xid/kmsg.go
    (
        "NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        "gpu-lost",
        "0000:05:00",
    ),
    # github.com/leptonai/gpud pull request 46
    (
        "NVRM: Xid (PCI:0000:cb:00): 13, pid='<unknown>', name=<unknown>, Graphics SM Warp Exception on "
        "(GPC 7, TPC 7, SM 0): Illegal Instruction Parameter",
        "application-fault",
        "0000:cb:00",
    ),
    (
        "NVRM: Xid (PCI:0000:cb:00): 109, pid=1797828, name=pt_main_thread, Ch 00000008, errorString CTX SWITCH "
        "TIMEOUT, Info 0x58005",
        "gpu-fault",
        "0000:cb:00",
    ),
    # github.com/leptonai/gpud pull requests 1160 and 1174
    ("NVRM: Xid (PCI:0000:9b:00): 94, pid=1234, name=python3, Contained ECC error", "gpu-memory-error", "0000:9b:00"),
    (
        "NVRM: Xid (PCI:0000:00:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x025001c6 0x00000000 0x00000000)",
        "nvlink5-fatal",
        "0000:00:00",
    ),
    (
        "NVRM: Xid (PCI:0018:01:00): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 0x00000001)",
        "nvlink-corrected",
        "0018:01:00",
    ),
    # docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/user-visible-statistics.html
    (
        "NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel (0x9). RST: No, D-RST: No",
        "gpu-memory-error",
        "0000:01:00",
    ),
    # github.com/stas00/ml-engineering compute/accelerator/nvidia/debug.md
    (
        "NVRM: Xid (PCI:0000:10:1c): 63, pid=1896, Row Remapper: New row marked for remapping, reset gpu to activate.",
        "row-remap-pending",
        "0000:10:1c",
    ),
    # github.com/NVIDIA/open-gpu-kernel-modules issue 1045; forums.developer.nvidia.com 371272
    (
        "NVRM: Xid (PCI:0000:19:00): 119, pid=289957, name=pt_main_thread, Timeout after 45s of waiting for RPC "
        "response from GPU0 GSP! Expected function 76 (GSP_RM_CONTROL) (0xa06f0112 0x1).",
        "gpu-fault",
        "0000:19:00",
    ),
    (
        "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
        "recovery-reset",
        "0000:01:00",
    ),
    (
        "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
        "recovery-reboot",
        "0000:01:00",
    ),
    ("NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x1 to 0x0 (None)", None, None),
    # github.com/NVIDIA/open-gpu-kernel-modules issue 1150
    (
        "NVRM: Xid (PCI:0000:dc:00): 45, pid=1818990, name=python3, Ch 00000001 caused by previous Xid 149",
        "application-fault",
        "0000:dc:00",
    ),
    # github.com/NVIDIA/nccl issue 2241
    (
        "NVRM: Xid (PCI:0000:ba:00): 137, RLW_RXPIPE interrupt hit on link 11 on GPU0: PRIV Error",
        "gpu-xid",
        "0000:ba:00",
    ),
    ("NVRM: GPU1 kbifCacheVFInfo_GB100: Unable to read NV_PF0_INITIAL_AND_TOTAL_VFS", None, None),
    # github.com/NVIDIA/open-gpu-kernel-modules kernel-open/nvidia/nv.c: one record of three lines
    (
        "NVRM: The NVIDIA GPU 0000:b3:00.0 NVRM: (PCI ID: 10de:26b5) installed in this system has NVRM: fallen off "
        "the bus and is not responding to commands.",
        "gpu-not-initialized",
        "0000:b3:00.0",
    ),
    # github.com/leptonai/gpud components/accelerator/nvidia/sxid/kmsg.go
    (
        "nvidia-nvswitch0: SXid (PCI:0000:00:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
        "nvswitch-fatal",
        "nvidia-nvswitch0",
    ),
    (
        "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)",
        "nvswitch-corrected",
        "nvidia-nvswitch3",
    ),
    # github.com/llvm/llvm-project discussions and mailing lists: the three records of a kill
    ("Out of memory: Killed process 20154 (gunicorn) total-vm:38942992kB, anon-rss:30142812kB", "oom-kill", None),
    (
        "Memory cgroup out of memory: Killed process 4242 (pt_main_thread) total-vm:9999kB, anon-rss:1kB",
        "oom-kill",
        None,
    ),
    (
        "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/,"
        "task=gunicorn,pid=20154,uid=0",
        None,
        None,
    ),
    # github.com/radiasoft/devops issue 134, github.com/andikleen/mcelog issues 74 and 91
    ("mce: [Hardware Error]: Machine check events logged", "machine-check", None),
    (
        "EDAC MC1: 1 CE memory scrubbing error on CPU_SrcID#1_Ha#0_Chan#0_DIMM#0 (channel:0 slot:0 page:0xee30a0)",
        "host-memory-corrected",
        "MC1",
    ),
    (
        "EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0 (channel:0 slot:0 page:0xe16677)",
        "host-memory-uncorrected",
        "MC0",
    ),
    # github.com/oxidecomputer/propolis issue 578 and pull request 1156
    ("nvme nvme1: I/O 775 QID 2 timeout, aborting", "disk-io", "nvme1"),
    ("nvme nvme0: I/O 900 (I/O Cmd) QID 2 timeout, aborting", "disk-io", "nvme0"),
    (
        "I/O error, dev nvme0n1, sector 1336320 op 0x0:(READ) flags 0x80700 phys_seg 4 prio class 2",
        "disk-io",
        "nvme0n1",
    ),
    # github.com/linux-nvme/nvme-cli issue 151
    ("nvme nvme2: Removing after probe failure status: -19", "disk-lost", "nvme2"),
    # a bug report of ext4 and a kernel bug in it, ubuntuforums.org
    ("EXT4-fs (sda3): Remounting filesystem read-only", "filesystem-read-only", "sda3"),
    ("BUG: unable to handle kernel paging request at febaebc0", "kernel-bug", None),
    # github.com/leptonai/gpud components/cpu/kmsg_matcher.go
    ("watchdog: BUG: soft lockup - CPU#18 stuck for 27s! [python3:2254956]", "cpu-lockup", "CPU#18"),
    ("INFO: task python3:1234 blocked for more than 120 seconds.", "hung-task", None),
    # what every boot writes, and faults of programs
    ("EDAC MC: Ver: 3.0.0", None, None),
    ("mce: CPU supports 7 MCE banks", None, None),
    ("nvme nvme0: 16/0/0 default/read/poll queues", None, None),
    ("EXT4-fs (nvme0n1p1): mounted filesystem with ordered data mode. Quota mode: none.", None, None),
    ("python3[1234]: segfault at 0 ip 0000000000000000 sp 00007ffd error 14 in python3.12", None, None),
    ("traps: python3[99] general protection fault ip:7f sp:7f error:0 in libc.so.6", None, None),
    ("blk_update_request: operation not supported error, dev nvme0n1, sector 0 op 0x0:(READ)", None, None),
]


@pytest.mark.parametrize(("text", "rule", "device"), RECORDED)
def test_recorded_text_matches_its_rule(text: str, rule: str | None, device: str | None) -> None:
    match = find_rule(text)
    assert (match and match[0].name, match and match[1]) == (rule, device)


def test_text_names_the_number_of_the_xid() -> None:
    match = find_rule("NVRM: Xid (PCI:0000:2b:00): 79, GPU has fallen off the bus.")
    assert match is not None
    assert match[2] == "Xid 79: GPU has fallen off the bus."


def test_record_is_parsed() -> None:
    record = parse_record("3,4711,62123456,-;NVRM: The NVIDIA GPU 0000:b3:00.0\\x0aNVRM: (PCI ID: 10de:26b5)")
    assert record is not None
    assert (record.sequence, record.seconds) == (4711, 62.123456)
    assert record.text == "NVRM: The NVIDIA GPU 0000:b3:00.0 NVRM: (PCI ID: 10de:26b5)"


@pytest.mark.parametrize(
    "line",
    [
        " SUBSYSTEM=pci",
        "",
        "no record",
        "6,1;too few fields",
        "12,5,100,-;NVRM: Xid (PCI:0000:2b:00): 79, GPU has fallen off the bus.",  # facility 1: written by a process
    ],
)
def test_line_that_is_no_record_of_the_kernel_is_ignored(line: str) -> None:
    assert parse_record(line) is None


def write_log(root: Path, *texts: str, first: int = 0) -> None:
    (root / "dev").mkdir(exist_ok=True)
    (root / "run").mkdir(exist_ok=True)
    with (root / "dev/kmsg").open("a") as log:
        log.writelines(f"3,{first + index},1000000,-;{text}\n SUBSYSTEM=pci\n" for index, text in enumerate(texts))


XID_63 = "NVRM: Xid (PCI:0000:10:1c): 63, Row Remapper: New row marked for remapping, reset gpu to activate."
XID_79 = "NVRM: Xid (PCI:0000:a0:1c): 79, GPU has fallen off the bus."


def names(readings: list[Reading]) -> list[str]:
    return [reading.rule.name for reading in readings]


def test_missing_log_has_no_findings(tmp_path: Path) -> None:
    log = KernelLog(tmp_path)
    assert list(log.read()) == []
    write_log(tmp_path, XID_79)
    assert names(list(log.read())) == ["gpu-lost"]


def test_each_record_is_read_once(tmp_path: Path) -> None:
    log = KernelLog(tmp_path)
    write_log(tmp_path, XID_63)
    assert names(list(log.read())) == ["row-remap-pending"]
    write_log(tmp_path, XID_79, first=1)
    assert names(list(log.read())) == ["gpu-lost"]
    log.close()
    assert list(log.read()) == []


def test_incomplete_line_is_read_when_it_is_complete(tmp_path: Path) -> None:
    log = KernelLog(tmp_path)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/kmsg").write_text(f"3,0,1000000,-;{XID_79[:20]}")
    assert list(log.read()) == []
    with (tmp_path / "dev/kmsg").open("a") as file:
        file.write(f"{XID_79[20:]}\n")
    assert names(list(log.read())) == ["gpu-lost"]


def test_overwritten_records_are_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_log(tmp_path, XID_79)
    results: list[bytes | OSError] = [BrokenPipeError(), f"3,9,1,-;{XID_79}\n".encode(), BlockingIOError()]

    def read(descriptor: int, size: int) -> bytes:
        result = results.pop(0)
        if isinstance(result, OSError):
            raise result
        return result

    monkeypatch.setattr(os, "read", read)
    assert names(list(KernelLog(tmp_path).read())) == ["gpu-lost"]


def test_gpu_has_the_number_of_its_place_in_the_order_of_addresses(tmp_path: Path) -> None:
    for address in ("0000:a0:1c.0", "0000:10:1C.0"):
        (tmp_path / "proc/driver/nvidia/gpus" / address).mkdir(parents=True)
    write_log(tmp_path, XID_63, XID_79)
    assert [reading.device for reading in KernelLog(tmp_path).read()] == ["GPU 0", "GPU 1"]
    assert gpu_name("0000:99:00", tmp_path) == "GPU 0000:99:00"


def test_reset_removes_earlier_records_that_called_for_one(tmp_path: Path) -> None:
    write_log(tmp_path, XID_63, XID_79)
    mark_repaired(tmp_path)
    write_log(tmp_path, XID_63, first=2)
    assert names(list(KernelLog(tmp_path).read())) == ["gpu-lost", "row-remap-pending"]


def test_pipe_without_records_does_not_block(tmp_path: Path) -> None:
    """Machines of systemd-nspawn have a pipe in place of the device."""
    (tmp_path / "dev").mkdir()
    os.mkfifo(tmp_path / "dev/kmsg")
    log = KernelLog(tmp_path)
    thread = threading.Thread(target=lambda: list(log.read()), daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    log.close()
