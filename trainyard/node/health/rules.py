"""The table of faults: what is seen on a node, and what to do about it.

Each row names the document on which it is based. Where NVIDIA and AWS differ, or neither knows EC2, `reason` explains
the action. docs/node-health.md is generated from this table. An action is advice to the controller: nothing here
interrupts a job.
"""

from dataclasses import dataclass

from trainyard.models.node_health import HealthAction

XID_CATALOG = "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html"
_MEMORY_ERRORS = "https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/"
_NVML = "https://docs.nvidia.com/deploy/nvml-api/"
_FABRIC_MANAGER = "https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/contents.html"
_GPU_DEBUG = "https://docs.nvidia.com/deploy/gpu-debug-guidelines/index.html"
_EKS_HEALTH = "https://docs.aws.amazon.com/eks/latest/userguide/node-health.html"
_EFA_COUNTERS = "https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-working-monitor.html"
_EBS_NVME = "https://docs.aws.amazon.com/ebs/latest/userguide/nvme-ebs-volumes.html"
_KERNEL = "https://docs.kernel.org/"
TRANSIENT_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One row of the table.

    `signal`: what a sensor sees, for the documentation. `xids`: Xid numbers in the kernel log. `pattern`: regular
    expression that the text of a kernel log record contains (after the number of an Xid); its named groups are the
    device. `expires_seconds`: time after the last reading at which the finding ends; None: an event lasts until a
    repair or the end of the boot, a condition until its sensor does not see it any more. `reason`: why this action.
    """

    name: str
    signal: str
    action: HealthAction
    source: str
    xids: tuple[int, ...] = ()
    pattern: str = ""
    expires_seconds: float | None = None
    reason: str = ""


_APPLICATION_XIDS = (8, 11, 13, 25, 31, 32, 39, 40, 41, 43, 45, 60, 68, *range(69, 73), 75, 76, 77, 80, *range(82, 87))
_ENGINE_XIDS = (88, 89, *range(96, 106), *range(126, 136), 139)

# The first row that matches a record counts.
APPLICATION = Rule(
    name="application-fault",
    signal="fault of the process that uses the GPU: illegal access, exception, end of the process",
    action="none",
    source=XID_CATALOG,
    xids=(*_APPLICATION_XIDS, *_ENGINE_XIDS),
    reason="NVIDIA: RESTART_APP or IGNORE. The job's own code, and what follows another Xid (45)",
)
GPU_FAULT = Rule(
    name="gpu-fault",
    signal="microcontroller, GSP, context switch, link training or initialization failed",
    action="reset",
    source=XID_CATALOG,
    xids=(46, 62, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158),
    reason="NVIDIA: RESET_GPU",
)
GPU_MEMORY = Rule(
    name="gpu-memory-error",
    signal="uncorrectable memory error; NVML: volatile uncorrected ECC errors",
    action="reset",
    source=_MEMORY_ERRORS + "response-to-uncorrectable-contained-ecc-errors.html",
    xids=(48, 94, 95),
    reason="a contained error (94) needs no reset, but it has ended the job: the reset remaps the row before the next",
)
ROW_REMAP_PENDING = Rule(
    name="row-remap-pending",
    signal="a memory row is to be remapped; NVML: remapping pending",
    action="reset",
    source=_MEMORY_ERRORS + "error-recovery-and-response-flags.html",
    xids=(63,),
    reason="the remapping happens at the next reset; until then the job can continue",
)
ROW_REMAP_FAILED = Rule(
    name="row-remap-failed",
    signal="remapping of a memory row failed; NVML: remapping failure",
    action="replace",
    source=_MEMORY_ERRORS + "error-recovery-and-response-flags.html",
    xids=(64,),
    reason="NVIDIA replaces such GPUs (RMA)",
)
GPU_LOST = Rule(
    name="gpu-lost",
    signal="GPU has fallen off the bus; NVML: GPU is lost",
    action="replace",
    source=XID_CATALOG,
    xids=(79,),
    # github.com/aws/eks-node-monitoring-agent, monitors/nvidia/dcgm/dcgm_policies.go
    reason="NVIDIA: RESTART_BM, a power cycle of the host. A reboot of an instance is none, and EKS replaces the node",
)
GPU_HARDWARE = Rule(
    name="gpu-hardware",
    signal="auxiliary power missing, or a unit of the GPU failed permanently",
    action="replace",
    source=XID_CATALOG,
    xids=(54, 142),
    reason="NVIDIA: CHECK_MECHANICALS, CONTACT_SUPPORT",
)
GPU_ECC_RATE = Rule(
    name="gpu-wear",
    signal="high rate of corrected ECC errors, InfoROM wear, resource retirement failure",
    action="warn",
    source=XID_CATALOG,
    xids=(92, 93, 157),
    reason="NVIDIA: IGNORE; a later failure is likely",
)
GPU_KEYS = Rule(
    name="gpu-key-rotation",
    signal="key rotation of confidential computing failed",
    action="reboot",
    source=XID_CATALOG,
    xids=(151,),
    reason="NVIDIA: RESTART_VM",
)
RECOVERY_RESET = Rule(
    name="recovery-reset",
    signal="the driver requests a GPU reset; NVML: recovery action",
    action="reset",
    source=_MEMORY_ERRORS + "error-recovery-and-response-flags.html",
    xids=(154,),
    pattern=r"to 0x[14]\b",
)
RECOVERY_REBOOT = Rule(
    name="recovery-reboot",
    signal="the driver requests a reboot; NVML: recovery action",
    action="reboot",
    source=_MEMORY_ERRORS + "error-recovery-and-response-flags.html",
    xids=(154,),
    pattern=r"to 0x[267]\b",
)
NVLINK = Rule(
    name="nvlink-error",
    signal="NVLink error; NVML: fewer active links than on another GPU of the node",
    action="reset",
    source=XID_CATALOG,
    xids=(74,),
    reason="NVIDIA: WORKFLOW_NVLINK_ERR, reset or reboot",
)
NVLINK5_FATAL = Rule(
    name="nvlink5-fatal",
    signal="fatal NVLink error (Blackwell)",
    action="reset",
    source=XID_CATALOG,
    xids=tuple(range(144, 151)),
    pattern=r"\bFatal\b",
    reason="NVIDIA: WORKFLOW_NVLINK5_ERR",
)
NVLINK_ERRORS = Rule(
    name="nvlink-corrected",
    signal="NVLink error from which the link recovered (Blackwell); NVML: recovery counter has grown",
    action="warn",
    source=_NVML + "index.html",
    xids=tuple(range(144, 151)),
)
XID_OTHER = Rule(
    name="gpu-xid",
    signal="any Xid that no other row names",
    action="warn",
    source=XID_CATALOG,
    pattern=r"^(?!.*to 0x0 \(None\))",  # an Xid 154 that ends a recovery action
    reason="the catalog grows with the driver: an unknown number is no proof",
)
XID_RULES = (
    APPLICATION,
    GPU_FAULT,
    GPU_MEMORY,
    ROW_REMAP_PENDING,
    ROW_REMAP_FAILED,
    GPU_LOST,
    GPU_HARDWARE,
    GPU_ECC_RATE,
    GPU_KEYS,
    RECOVERY_RESET,
    RECOVERY_REBOOT,
    NVLINK,
    NVLINK5_FATAL,
    NVLINK_ERRORS,
)

FILESYSTEM_READ_ONLY = Rule(
    name="filesystem-read-only",
    signal="a file system was remounted read-only or shut down after errors; statvfs: read-only",
    action="replace",
    source=_KERNEL + "admin-guide/ext4.html",
    pattern=r"(?:EXT4-fs|XFS) \((?P<device>[^)]+)\): (?:Remounting filesystem read-only|.*[Ss]hutting down filesystem)",
)
HOST_MEMORY = Rule(
    name="host-memory-uncorrected",
    signal="uncorrected error of the host's memory; EDAC: ue_count",
    action="replace",
    source=_KERNEL + "admin-guide/RAS/main.html",
    pattern=r"EDAC (?P<device>MC\d+): \d+ UE\b|Memory failure: 0x[0-9a-f]+: ",
)
KERNEL_RULES = (
    Rule(
        name="gpu-not-initialized",
        signal="a GPU does not respond when the driver starts",
        action="replace",
        source=_GPU_DEBUG,
        pattern=r"NVRM: The NVIDIA GPU (?P<device>[0-9a-fA-F:.]+).*fallen off the bus and is not responding",
        reason="as `gpu-lost`",
    ),
    Rule(
        name="nvswitch-fatal",
        signal="fatal SXid of an NVSwitch",
        action="reset",
        source=_FABRIC_MANAGER,
        pattern=r"(?P<device>nvidia-nvswitch\d+): SXid \([^)]*\): \d+, Fatal",
        reason="the reset of all GPUs resets the switches",
    ),
    Rule(
        name="nvswitch-corrected",
        signal="SXid of an NVSwitch that is not fatal",
        action="warn",
        source=_FABRIC_MANAGER,
        pattern=r"(?P<device>nvidia-nvswitch\d+): SXid \(",
    ),
    Rule(
        name="oom-kill",
        signal="the kernel killed a process because memory was exhausted",
        action="none",
        source=_KERNEL + "admin-guide/mm/concepts.html#oom-killer",
        pattern=r"[Oo]ut of memory: Killed process \d+ \(.+\)",
        reason="as a rule the job itself used the memory: the same would happen on any node",
    ),
    HOST_MEMORY,
    Rule(
        name="host-memory-corrected",
        signal="corrected error of the host's memory",
        action="warn",
        source=_KERNEL + "admin-guide/RAS/main.html",
        pattern=r"EDAC (?P<device>MC\d+): \d+ CE\b",
    ),
    Rule(
        name="machine-check",
        signal="machine check event",
        action="warn",
        source=_KERNEL + "arch/x86/x86_64/machinecheck.html",
        pattern=r"\[Hardware Error\]: Machine check events logged",
        reason="most are corrected errors; an uncorrected one stops the kernel or kills a process",
    ),
    Rule(
        name="pcie-error",
        signal="uncorrected error of a PCIe device",
        action="warn",
        source=_KERNEL + "PCI/pcieaer-howto.html",
        pattern=r"(?P<device>[0-9a-f:.]+): PCIe Bus Error: severity=(?:Uncorrect|Fatal)",
        reason="an error from which a GPU does not recover causes an Xid",
    ),
    Rule(
        name="disk-lost",
        signal="the kernel removed an NVMe disk after errors",
        action="replace",
        source=_EBS_NVME,
        pattern=r"nvme (?P<device>nvme\d+): (?:Disabling device after reset failure|Removing after probe failure)",
    ),
    Rule(
        name="disk-io",
        signal="timeout or error of disk I/O",
        action="warn",
        source=_EBS_NVME,
        pattern=r"nvme (?P<device>nvme\d+): I/O .*timeout|"
        r"(?:I/O|critical \w+) error, dev (?P<disk>(?:nvme|sd|xvd)\w+), sector",
        reason="single errors are repeated with success; `disk-lost` and `filesystem-read-only` follow otherwise",
    ),
    FILESYSTEM_READ_ONLY,
    Rule(
        name="kernel-bug",
        signal="the kernel hit a bug and may be inconsistent",
        action="reboot",
        source=_EKS_HEALTH,
        pattern=r"kernel BUG at |BUG: (?:unable to handle|kernel NULL pointer)|\bOops: ",
    ),
    Rule(
        name="cpu-lockup",
        signal="a CPU is stuck in the kernel",
        action="warn",
        source=_KERNEL + "admin-guide/lockup-watchdogs.html",
        pattern=r"BUG: soft lockup - (?P<device>CPU#\d+)|Watchdog detected hard LOCKUP",
        reason="a lockup that lasts stops the heartbeats of the agent",
    ),
    Rule(
        name="hung-task",
        signal="a process waits in the kernel for minutes",
        action="warn",
        source=_KERNEL + "admin-guide/sysctl/kernel.html#hung-task-timeout-secs",
        pattern=r"INFO: task .+:\d+ blocked for more than \d+ seconds",
        reason="slow storage causes it, too",
    ),
)

GPU_MISSING = Rule(
    name="gpu-missing",
    signal="NVML: fewer GPUs than the instance type has",
    action="replace",
    source=_GPU_DEBUG,
    reason="as `gpu-lost`",
)
PCIE_REDUCED = Rule(
    name="pcie-reduced",
    signal="NVML: PCIe width below its maximum, or generation below its maximum while the GPU computes",
    action="warn",
    source=_NVML + "index.html",
    expires_seconds=TRANSIENT_SECONDS,
    reason="a virtual bridge may report another width; a health check measures whether the GPU is slow",
)
THERMAL = Rule(
    name="thermal-slowdown",
    signal="NVML: clocks reduced because of the temperature",
    action="warn",
    source=_NVML + "api/group__nvmlClocksEventReasons.html",
    expires_seconds=TRANSIENT_SECONDS,
)
POWER_BRAKE = Rule(
    name="power-brake",
    signal="NVML: clocks reduced by the power brake of the host",
    action="warn",
    source=_NVML + "api/group__nvmlClocksEventReasons.html",
    expires_seconds=TRANSIENT_SECONDS,
)
EFA_MISSING = Rule(
    name="efa-missing",
    signal="fewer EFA devices than the node should have",
    action="replace",
    source=_EFA_COUNTERS,
)
EFA_DOWN = Rule(
    name="efa-down",
    signal="the port of an EFA device is not active",
    action="replace",
    source=_KERNEL + "admin-guide/abi-stable.html",
    expires_seconds=TRANSIENT_SECONDS,
    reason="the link belongs to the host; a short interruption expires",
)
EFA_ERRORS = Rule(
    name="efa-errors",
    signal="an error counter of EFA grows by more than 100 a second (retransmitted packets: 1,000)",
    action="warn",
    source=_EFA_COUNTERS,
    expires_seconds=TRANSIENT_SECONDS,
    reason="the limits of AWS's node monitoring agent; the peer or the network may be the cause",
)
DISK_FULL = Rule(
    name="disk-full",
    signal="less than 1 % of the space or of the inodes is free",
    action="warn",
    source="https://man7.org/linux/man-pages/man3/statvfs.3.html",
    expires_seconds=TRANSIENT_SECONDS,
    reason="as a rule the job's own files: they would fill another disk, too",
)
MEMORY_LOW = Rule(
    name="memory-low",
    signal="less than 3 % of the memory is available",
    action="warn",
    source=_KERNEL + "filesystems/proc.html#meminfo",
    expires_seconds=TRANSIENT_SECONDS,
)
SENSOR_HANGS = Rule(
    name="sensor-hangs",
    signal="a sensor has not responded for 30 s",
    action="warn",
    source=_GPU_DEBUG,
    expires_seconds=TRANSIENT_SECONDS,
    reason="a driver that hangs blocks its callers; the Xid that explains it decides",
)
VALUE_RULES = (
    GPU_MISSING,
    PCIE_REDUCED,
    THERMAL,
    POWER_BRAKE,
    EFA_MISSING,
    EFA_DOWN,
    EFA_ERRORS,
    DISK_FULL,
    MEMORY_LOW,
    SENSOR_HANGS,
)
RULES = {rule.name: rule for rule in (*XID_RULES, XID_OTHER, *KERNEL_RULES, *VALUE_RULES)}
