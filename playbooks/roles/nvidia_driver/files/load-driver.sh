#!/bin/sh
# Load the kernel modules of the installed driver, and hold its packages.
#   load-driver.sh REBOOT_FILE fabric|- nvlink5|-
# Prints `changed` if anything was changed, `reboot` if the node must reboot first (with the reason in REBOOT_FILE), and
# `nvidia-persistenced` if the system has that unit.
set -eu
reboot_file=$1 fabric=$2 nvlink5=$3
record=/var/lib/trainyard/nvidia_driver-reboot  # boot id of the last request: /run does not survive the reboot
kernel=$(uname -r)
boot=$(cat /proc/sys/kernel/random/boot_id)

fail() { echo "$*" >&2; exit 1; }

installed_version() { modinfo -k "$kernel" -F version nvidia 2>/dev/null || true; }

request_reboot() {
  reason=$1
  if [ -e "$record" ] && ! grep -q "^$boot " "$record"; then
    fail "The node was rebooted for its NVIDIA driver ($(cut -d' ' -f2- "$record")), and the reboot did not help:" \
      "$reason. Check 'dkms status' and what loads the old module at boot (initramfs, /etc/modules-load.d), or use" \
      "another image."
  fi
  mkdir -p "$(dirname "$record")" "$(dirname "$reboot_file")"
  echo "$boot $reason" > "$record"
  echo "nvidia_driver: $reason" > "$reboot_file"
  echo changed
  echo reboot
  exit 0
}

driver=$(installed_version)
if [ -z "$driver" ]; then
  if command -v dkms >/dev/null; then dkms autoinstall -k "$kernel" >&2 || true; fi
  driver=$(installed_version)
  [ -n "$driver" ] || fail "The running kernel $kernel has no NVIDIA module: DKMS could not build it." \
    "$(tail -n 5 /var/lib/dkms/nvidia/*/build/make.log 2>/dev/null || true)"
  echo changed
fi

loaded=$(cat /sys/module/nvidia/version 2>/dev/null || true)
if [ -e /sys/module/nouveau ]; then
  if ! [ -e /etc/modprobe.d/trainyard-nouveau.conf ]; then
    printf 'blacklist nouveau\noptions nouveau modeset=0\n' > /etc/modprobe.d/trainyard-nouveau.conf
    if command -v update-initramfs >/dev/null; then update-initramfs -u >&2; fi
  fi
  request_reboot "the nouveau driver is loaded, and only a reboot unloads it"
fi
if [ -n "$loaded" ] && [ "$loaded" != "$driver" ]; then
  request_reboot "the kernel has driver $loaded loaded, and $driver is installed"
fi
if [ -z "$loaded" ]; then
  modprobe -a nvidia nvidia-uvm || fail "The NVIDIA module $driver cannot be loaded:" \
    "$(dmesg 2>/dev/null | grep -E 'NVRM|nvidia' | tail -n 5)"
  echo changed
fi
if [ -e "$record" ]; then
  rm -f "$record" "$reboot_file"
fi

# Packages with the driver's version belong to it: libraries, tools, Fabric Manager.
packages=$(dpkg-query -W -f '${db:Status-Status} ${Package} ${Version}\n' |
  awk -v driver="$driver" '$1 == "installed" && index($3, driver "-") == 1 {print $2}')
if [ -n "$packages" ]; then
  # shellcheck disable=SC2086 # one argument per package
  apt-mark hold $packages | grep -v already >&2 && echo changed || true
fi

if [ "$nvlink5" = nvlink5 ]; then
  if ! [ -e /etc/modules-load.d/trainyard-nvlink5.conf ]; then
    echo ib_umad > /etc/modules-load.d/trainyard-nvlink5.conf
    echo changed
  fi
  [ -e /sys/module/ib_umad ] || modprobe ib_umad || fail "The module ib_umad, which Fabric Manager needs for NVLink 5" \
    "switches, cannot be loaded: the kernel $kernel does not have it. Use another image."
fi
if [ "$fabric" = fabric ]; then
  version=$(nv-fabricmanager --version 2>/dev/null | sed -n 's/.*version is : *\([0-9.]*\).*/\1/p' | head -1)
  [ "$version" = "$driver" ] || fail "Fabric Manager is ${version:-not installed}, and the driver is $driver:" \
    "NVSwitch works only with the same version of both (CUDA error 802). Use an image in which they are equal, or one" \
    "without a driver."
fi

if systemctl cat nvidia-persistenced.service >/dev/null 2>&1; then echo nvidia-persistenced; fi
