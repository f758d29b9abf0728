#!/bin/sh
# Checks EFA's installer, then runs it; nothing of it runs unchecked. What it is made of goes when it is done or refused.
#   install.sh FOLDER URL REBOOT_FILE sha256|signature CHECKSUM|FINGERPRINT [OPTION...]
set -eu
folder=$1 url=$2 reboot=$3 by=$4 wanted=$5
shift 5
installer=$folder/installer.tar.gz
log=/var/log/trainyard-efa-installer.log

refuse() {
  rm -rf "$folder"
  echo "$url: $*. Nothing of it was run." >&2
  exit 1
}

case $by in
  sha256)
    seen=$(sha256sum < "$installer" | cut -d ' ' -f 1)
    [ "$seen" = "$(echo "$wanted" | tr 'A-F' 'a-f')" ] ||
      refuse "its SHA-256 is $seen, not $wanted: name the one of this version (efa_sha256), or another download (efa_url)"
    ;;
  signature)
    mkdir -p -m 0700 "$folder/gnupg"
    gpg --homedir "$folder/gnupg" --batch --yes --no-autostart --quiet --output "$folder/key.gpg" \
      --dearmor "$folder/key" || refuse "what was downloaded as its key is none"
    # The last word of VALIDSIG is the fingerprint of the primary key: that key alone is trusted, whatever else was sent.
    if said=$(gpgv --status-fd 1 --keyring "$folder/key.gpg" "$folder/signature" "$installer" 2> "$folder/words"); then
      signer=$(echo "$said" | sed -n 's/^\[GNUPG:\] VALIDSIG .* //p')
    else
      refuse "its signature is not good: $(grep -v '^gpgv: Signature made' "$folder/words" | tr '\n' ' ')"
    fi
    [ "$signer" = "$(echo "$wanted" | tr -d ' ')" ] ||
      refuse "it is signed by ${signer:-nobody}, and only $wanted is trusted (efa_key_fingerprint)"
    ;;
esac

rm -rf "$folder/unpacked"
mkdir "$folder/unpacked"
tar -xzf "$installer" --no-same-owner -C "$folder/unpacked"
cd "$folder/unpacked/aws-efa-installer" || refuse "it holds no folder aws-efa-installer"

if ! env DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1 ./efa_installer.sh "$@" > "$log" 2>&1 < /dev/null; then
  echo "EFA's installer failed; the end of $log:" >&2
  tail -n 40 "$log" >&2
  exit 1
fi
if grep -q 'Please reboot' "$log"; then
  mkdir -p "$(dirname "$reboot")"
  echo "efa: the installer could not unload the older driver, which is in use" > "$reboot"
fi
rm -rf "$folder"
