"""Stand-ins for NVIDIA's packages, for machines without a GPU: their programs implement the calls of the roles.

Containers share the kernel modules of the host: here a folder of the machine represents the modules, and stand-ins for
`modinfo`, `modprobe` and `dkms` use that folder.
"""

import yaml

from tests.apt_repository import Package
from tests.machines import ROOT

CUDA_DEFAULTS = yaml.safe_load((ROOT / "playbooks/roles/cuda/defaults/main.yml").read_text())
CUDA_VARS = yaml.safe_load((ROOT / "playbooks/roles/cuda/vars/main.yml").read_text())
CUDA_VERSIONS = dict(package.split("=") for package in CUDA_DEFAULTS["cuda_packages"])
CUDNN = "/usr/include/x86_64-linux-gnu/cudnn_version.h"
# A folder of loaded modules per machine (a container has none), which is empty after each boot.
_MAKE_MODULES = """[Unit]
DefaultDependencies=no
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh -ec "mount -o remount,rw /sys; mkdir -p /sys/module"
"""
MODULES = {
    "/etc/systemd/system/modules.service": _MAKE_MODULES,
    "/etc/systemd/system/sysinit.target.d/modules.conf": "[Unit]\nRequires=modules.service\nAfter=modules.service\n",
}
UBUNTU = {
    "/etc/os-release": 'NAME="Ubuntu"\nID=ubuntu\nID_LIKE=debian\nVERSION_ID="24.04"\nVERSION_CODENAME=noble\n'
    'VERSION="24.04.3 LTS (Noble Numbat)"\nPRETTY_NAME="Ubuntu 24.04.3 LTS"\n',
    "/etc/lsb-release": "DISTRIB_ID=Ubuntu\nDISTRIB_RELEASE=24.04\nDISTRIB_CODENAME=noble\n",
}
_MODINFO = """#!/bin/sh
# modinfo -k KERNEL -F version MODULE
sed -n 's/^version=//p' "/lib/modules/$2/updates/dkms/$5.ko"
"""
_MODPROBE = """#!/bin/sh -e
for module; do
  case $module in -*) continue;; esac
  mkdir -p "/sys/module/$(echo "$module" | tr - _)"
  if [ "$module" = nvidia ]; then modinfo -k "$(uname -r)" -F version nvidia > /sys/module/nvidia/version; fi
done
"""
_DKMS = """#!/bin/sh
# dkms autoinstall -k KERNEL
[ -e "/usr/src/linux-headers-$3/Makefile" ] || { echo "no headers for $3" >&2; exit 1; }
for source in /usr/src/nvidia-*; do
  mkdir -p "/lib/modules/$3/updates/dkms"
  echo "version=${source#/usr/src/nvidia-}" > "/lib/modules/$3/updates/dkms/nvidia.ko"
done
"""
# /etc/gpus: the name of each GPU, one per line. From version 590 on, it has no application clocks but locked clocks; it
# refuses to lock memory clocks if /etc/gpus-without-memory-lock exists.
_SMI = """#!/bin/sh
library=@VERSION@
loaded=$(cat /sys/module/nvidia/version 2>/dev/null) || { echo "couldn't communicate with the NVIDIA driver"; exit 9; }
[ "$loaded" = "$library" ] || { echo "Failed to initialize NVML: Driver/library version mismatch"; exit 18; }
mkdir -p /run/gpu
each() { while read -r name; do echo "$1" | sed "s/NAME/$name/"; done < /etc/gpus; }
none="Requested functionality has been deprecated"
case $* in
  *clocks.applications*|"-ac "*)
    if [ "${library%%.*}" -ge 590 ]; then
      case $* in -ac*) echo "$none"; exit 3;; *) each "[$none], [$none]"; exit;; esac
    fi;;
esac
case $* in
  *persistence_mode*) each "$(cat /run/gpu/persistence 2>/dev/null || echo Disabled)";;
  *clocks.applications*) each "$(cat /run/gpu/clocks 2>/dev/null || echo '1593, 1095')";;
  *clocks.mem,clocks.gr*)
    each "$(cat /run/gpu/memory 2>/dev/null || echo 1593), $(cat /run/gpu/graphics 2>/dev/null || echo 345)";;
  *query-gpu=name*) each NAME;;
  *driver_version*) each "$loaded";;
  "-pm 1") echo Enabled > /run/gpu/persistence;;
  "-ac 9999,9999") echo "Specified clock combination is not supported"; exit 3;;
  "-ac "*) echo "$2" | sed 's/,/, /' > /run/gpu/clocks;;
  "-lmc "*)
    [ ! -e /etc/gpus-without-memory-lock ] || { echo "Setting locked memory clocks is not supported"; exit 3; }
    echo "${2%,*}" > /run/gpu/memory;;
  "-lgc "*) echo "${2%,*}" > /run/gpu/graphics;;
  "-q")
    each "    Fabric
        State                             : $(cat /run/gpu/fabric 2>/dev/null || echo In Progress)"
    echo Completed > /run/gpu/fabric;;
  *) echo "nvidia-smi: $*: unknown"; exit 2;;
esac
"""


def unit(program: str) -> str:
    """Return the text of a systemd service that runs the program."""
    return f"[Unit]\nDescription={program}\n[Service]\nExecStart={program}\n[Install]\nWantedBy=multi-user.target\n"


def distribution(kernel: str) -> list[Package]:
    """Return the packages of the distribution."""
    tools = {"/sbin/modinfo": _MODINFO, "/sbin/modprobe": _MODPROBE}
    return [
        Package(name="kmod", files=tools),
        Package(name="dkms", depends=["kmod"], files={"/usr/sbin/dkms": _DKMS}),
        Package(name=f"linux-headers-{kernel}", files={f"/usr/src/linux-headers-{kernel}/Makefile": ""}),
    ]


def fabric_manager(version: str, revision: str) -> Package:
    """Return the package of Fabric Manager."""
    program = f"#!/bin/sh\n[ -z \"$1\" ] && exec sleep infinity\necho 'Fabric Manager version is : {version}'\n"
    files = {
        "/usr/bin/nv-fabricmanager": program,
        "/lib/systemd/system/nvidia-fabricmanager.service": unit("/usr/bin/nv-fabricmanager"),
    }
    return Package(name="nvidia-fabricmanager", version=f"{version}-{revision}", files=files)


def _persistenced() -> dict[str, str]:
    return {
        "/usr/bin/nvidia-persistenced": "#!/bin/sh\nexec sleep infinity\n",
        "/lib/systemd/system/nvidia-persistenced.service": unit("/usr/bin/nvidia-persistenced"),
    }


def _modules(name: str, version: str, revision: str) -> Package:
    return Package(
        name=name,
        version=f"{version}-{revision}",
        depends=["dkms"],
        files={f"/usr/src/nvidia-{version}/dkms.conf": ""},
        scripts={"postinst": "#!/bin/sh\nexec dkms autoinstall -k $(uname -r)\n"},
    )


def debian_driver(version: str) -> list[Package]:
    """Return the driver packages of NVIDIA's repository for Debian 12: they depend on this version or newer."""
    revised = f"{version}-1"
    smi = {"/usr/bin/nvidia-smi": _SMI.replace("@VERSION@", version)}
    return [
        _modules("nvidia-kernel-open-dkms", version, "1"),
        _modules("nvidia-kernel-dkms", version, "1"),
        Package(name="libcuda1", version=revised),
        Package(name="nvidia-driver-cuda", version=revised, depends=[f"libcuda1 (>= {version})"], files=smi),
        Package(name="nvidia-modprobe", version=revised),
        Package(name="nvidia-persistenced", version=revised, files=_persistenced()),
        fabric_manager(version, "1"),
    ]


def ubuntu_driver(version: str) -> list[Package]:
    """Return the driver packages of NVIDIA's repository for Ubuntu 24.04: up to 580 the names include the branch."""
    branch, revised = version.split(".")[0], f"{version}-1ubuntu1"
    suffix = f"-{branch}" if int(branch) < 590 else ""
    smi = {"/usr/bin/nvidia-smi": _SMI.replace("@VERSION@", version)}
    return [
        _modules(f"nvidia-dkms{suffix}-open", version, "1ubuntu1"),
        _modules(f"nvidia-dkms{suffix}", version, "1ubuntu1"),
        Package(name=f"libnvidia-cfg1{suffix}", version=revised),
        Package(name=f"libnvidia-compute{suffix}", version=revised),
        Package(name=f"nvidia-compute-utils{suffix}", version=revised, files=_persistenced()),
        Package(name=f"nvidia-utils{suffix}", version=revised, files=smi),
        Package(name="nvidia-modprobe", version=revised),
        fabric_manager(version, "1ubuntu1"),
    ]


def cuda_toolkit(release: str, patch: str = "") -> list[Package]:
    """Return the packages of a CUDA release that the role installs; `nvcc` prints the version like NVIDIA's.

    `patch`: suffix of every version: `~1` makes an older version, `.9` a newer version.
    """
    suffix, home = release.replace(".", "-"), f"/usr/local/cuda-{release}"
    nvcc = f"#!/bin/sh\necho 'Cuda compilation tools, release {release}, V{release}.86'\n"
    files = {"cuda-nvcc": {f"{home}/bin/nvcc": nvcc}, "cuda-cudart-dev": {f"{home}/include/cuda_runtime.h": ""}}
    depends = {"cuda-minimal-build": ["cuda-nvcc", "cuda-cudart-dev"], "libcublas-dev": ["libcublas"]}
    versions = {**CUDA_VERSIONS, "libcublas": CUDA_VERSIONS["libcublas-dev"]}
    return [
        Package(
            name=f"{name}-{suffix}",
            version=version.replace("-1", f"{patch}-1"),
            depends=[
                f"{other}-{suffix} (>= {versions[other].split('-')[0]}{patch})" for other in depends.get(name, ())
            ],
            files=files.get(name, {}),
        )
        for name, version in versions.items()
    ]


def cudnn(version: str) -> list[Package]:
    """Return the packages of cuDNN."""
    major, minor, patch, _ = version.split(".")
    header = f"#define CUDNN_MAJOR {major}\n#define CUDNN_MINOR {minor}\n#define CUDNN_PATCHLEVEL {patch}\n"
    files = {CUDNN: header}
    return [
        Package(name="libcudnn9-cuda-13", version=f"{version}-1"),
        Package(name="libcudnn9-headers-cuda-13", version=f"{version}-1"),
        Package(name="libcudnn9-dev-cuda-13", version=f"{version}-1", files=files),
    ]
