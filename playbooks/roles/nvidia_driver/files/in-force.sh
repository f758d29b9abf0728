#!/bin/sh
# Has the installed driver drive the GPUs, held, with its services and clocks. Says `changed` where it had not been so,
# and `reboot` where the machine must reboot first.
#   in-force.sh REBOOT_FILE fabric|- nvlink5|- MEMORY,GRAPHICS|''
set -eu
reboot_file=$1 fabric=$2 nvlink5=$3 clocks=$4
record=/var/lib/trainyard/nvidia_driver-reboot  # the boot in which a reboot was asked for: /run does not outlive it
kernel=$(uname -r)
boot=$(cat /proc/sys/kernel/random/boot_id)

die() { echo "$*" >&2; exit 1; }

installed() { modinfo -k "$kernel" -F version nvidia 2>/dev/null || true; }

ask_reboot() {
  reason=$1
  if [ -e "$record" ] && ! grep -q "^$boot " "$record"; then
    die "This machine was rebooted for its NVIDIA driver ($(cut -d' ' -f2- "$record")), and that did not help:" \
      "$reason. Look at 'dkms status' and at what loads the old module at boot (initramfs, /etc/modules-load.d)," \
      "or take another image."
  fi
  mkdir -p "$(dirname "$record")" "$(dirname "$reboot_file")"
  echo "$boot $reason" > "$record"
  echo "nvidia_driver: $reason" > "$reboot_file"
  echo changed
  echo reboot
  exit 0
}

driver=$(installed)
if [ -z "$driver" ]; then
  if command -v dkms >/dev/null; then dkms autoinstall -k "$kernel" >&2 || true; fi
  driver=$(installed)
  [ -n "$driver" ] || die "There is no NVIDIA module for the running kernel, $kernel: DKMS could not build it." \
    "$(tail -n 5 /var/lib/dkms/nvidia/*/build/make.log 2>/dev/null || true)"
  echo changed
fi

loaded=$(cat /sys/module/nvidia/version 2>/dev/null || true)
if [ -e /sys/module/nouveau ]; then
  if ! [ -e /etc/modprobe.d/trainyard-nouveau.conf ]; then
    printf 'blacklist nouveau\noptions nouveau modeset=0\n' > /etc/modprobe.d/trainyard-nouveau.conf
    if command -v update-initramfs >/dev/null; then update-initramfs -u >&2; fi
  fi
  ask_reboot "nouveau drives the GPUs, and lets go of them at a reboot only"
fi
if [ -n "$loaded" ] && [ "$loaded" != "$driver" ]; then
  ask_reboot "the kernel has driver $loaded loaded, and $driver is installed"
fi
if [ -z "$loaded" ]; then
  modprobe -a nvidia nvidia-uvm || die "The NVIDIA module $driver can't be loaded:" \
    "$(dmesg 2>/dev/null | grep -E 'NVRM|nvidia' | tail -n 5)"
  echo changed
fi
if [ -e "$record" ]; then
  rm -f "$record" "$reboot_file"
fi

# Whatever has the driver's version belongs to it: libraries, tools, Fabric Manager.
own=$(dpkg-query -W -f '${db:Status-Status} ${Package} ${Version}\n' |
  awk -v driver="$driver" '$1 == "installed" && index($3, driver "-") == 1 {print $2}')
if [ -n "$own" ]; then
  # shellcheck disable=SC2086 # one word a package
  apt-mark hold $own | grep -v already >&2 && echo changed || true
fi

running() {
  unit=$1
  state=$(systemctl is-enabled "$unit" 2>/dev/null || true)
  if [ "$state" = disabled ]; then
    systemctl enable -q "$unit"
    echo changed
  fi
  systemctl is-active -q "$unit" && return
  systemctl start "$unit" || die "$unit does not start: $(journalctl -q -u "$unit" -n 5 -o cat --no-pager)"
  echo changed
}

if [ "$nvlink5" = nvlink5 ]; then
  if ! [ -e /etc/modules-load.d/trainyard-nvlink5.conf ]; then
    echo ib_umad > /etc/modules-load.d/trainyard-nvlink5.conf
    echo changed
  fi
  [ -e /sys/module/ib_umad ] || modprobe ib_umad || die "ib_umad, by which Fabric Manager reaches NVLink 5's switches," \
    "can't be loaded: the kernel $kernel lacks it"
fi
if [ "$fabric" = fabric ]; then
  version=$(nv-fabricmanager --version 2>/dev/null | sed -n 's/.*version is : *\([0-9.]*\).*/\1/p' | head -1)
  [ "$version" = "$driver" ] || die "Fabric Manager is ${version:-not there}, and the driver is $driver: NVSwitch" \
    "works with exactly the driver's version only (CUDA error 802). Take an image in which they are equal, or one" \
    "without a driver."
  running nvidia-fabricmanager.service
fi

# The image's own unit serves as well as the package's. Both start the daemon with persistence off, on some systems.
if systemctl cat nvidia-persistenced.service >/dev/null 2>&1; then running nvidia-persistenced.service; fi
if nvidia-smi --query-gpu=persistence_mode --format=csv,noheader | grep -qv Enabled; then
  nvidia-smi -pm 1 >&2 || die "nvidia-smi can't switch persistence on"
  echo changed
fi

ask() { nvidia-smi --query-gpu="$1" --format=csv,noheader,nounits 2>&1 | tr -d ' '; }

# Lock them where the driver knows no application clocks: NVML has dropped those, and newer drivers answer with words.
# https://docs.nvidia.com/deploy/nvml-api/Deprecations.html
# What is locked can't be asked for, only what the clocks are at the moment. A refusal stops no node.
lock_clocks() {
  before=$(ask clocks.mem,clocks.gr)
  echo "$before" | grep -qvx "$clocks" || return 0
  for lock in "-lmc ${clocks%,*},${clocks%,*}" "-lgc ${clocks#*,},${clocks#*,}"; do
    # shellcheck disable=SC2086 # two words
    told=$(nvidia-smi $lock 2>&1) || echo "note: nvidia-smi $lock is refused: $(echo "$told" | paste -sd' ' -)"
  done
  [ "$(ask clocks.mem,clocks.gr)" = "$before" ] || echo changed
}

if [ -n "$clocks" ]; then
  seen=$(ask clocks.applications.memory,clocks.applications.graphics)
  if echo "$seen" | grep -Eqvx '[0-9]+,[0-9]+'; then
    lock_clocks
  elif echo "$seen" | grep -qvx "$clocks"; then
    told=$(nvidia-smi -ac "$clocks" 2>&1) || die "nvidia-smi refuses the application clocks $clocks (memory,graphics," \
      "MHz): $told. 'nvidia-smi -q -d SUPPORTED_CLOCKS' lists what these GPUs take."
    echo changed
  fi
fi
