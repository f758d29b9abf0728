#!/bin/sh
# Make an installed kernel the default of GRUB, and request a reboot. GRUB's own default is the newest kernel. Source:
# FSx for Lustre guide, "Installing the Lustre client", Ubuntu. Prints `changed` if anything was changed.
#   boot-kernel.sh KERNEL REBOOT_FILE
set -eu
kernel=$1 reboot_file=$2
settings=/etc/default/grub.d/99-trainyard-lustre.cfg
record=/var/lib/trainyard/lustre-reboot  # boot id and kernel of the last request: /run does not survive the reboot
boot=$(cat /proc/sys/kernel/random/boot_id)

fail() { echo "$*" >&2; exit 1; }

if [ -e "$record" ] && grep -q " $kernel\$" "$record" && ! grep -q "^$boot " "$record"; then
  fail "The node was rebooted into the kernel $kernel, which has a Lustre client, and it runs $(uname -r): check" \
    "GRUB_DEFAULT in $settings and what overrides it, or use an image with that kernel (image)"
fi
expected="GRUB_DEFAULT='Advanced options for Ubuntu>Ubuntu, with Linux $kernel'"
if [ "$(cat "$settings" 2>/dev/null || true)" != "$expected" ]; then
  mkdir -p "$(dirname "$settings")"
  echo "$expected" > "$settings"
  echo changed
fi
update-grub >&2
grep -q "menuentry 'Ubuntu, with Linux $kernel'" /boot/grub/grub.cfg ||
  fail "GRUB has no menu entry for the installed kernel $kernel: use an image with that kernel (image)"
mkdir -p "$(dirname "$record")" "$(dirname "$reboot_file")"
echo "$boot $kernel" > "$record"
echo "lustre: the kernel $(uname -r) has no Lustre client, and $kernel has one" > "$reboot_file"
