#!/bin/sh
# Verify the EFA installer, then run it; nothing of it runs before that. Removes FOLDER on success and on refusal.
#   install.sh FOLDER URL REBOOT_FILE sha256|signature CHECKSUM|FINGERPRINT [OPTION...]
set -eu
folder=$1 url=$2 reboot_file=$3 method=$4 expected=$5
shift 5
installer=$folder/installer.tar.gz
log=/var/log/trainyard-efa-installer.log

refuse() {
  rm -rf "$folder"
  echo "$url: $*. The installer was not run." >&2
  exit 1
}

case $method in
  sha256)
    checksum=$(sha256sum < "$installer" | cut -d ' ' -f 1)
    [ "$checksum" = "$(echo "$expected" | tr 'A-F' 'a-f')" ] ||
      refuse "the SHA-256 is $checksum, not $expected: set efa_installer_sha256 to that of this version, or another" \
        "efa_installer_url"
    ;;
  signature)
    mkdir -p -m 0700 "$folder/gnupg"
    gpg --homedir "$folder/gnupg" --batch --yes --no-autostart --quiet --output "$folder/key.gpg" \
      --dearmor "$folder/key" || refuse "the downloaded signing key is not a key"
    # The last field of VALIDSIG is the fingerprint of the primary key: other keys in the file are not trusted.
    if output=$(gpgv --status-fd 1 --keyring "$folder/key.gpg" "$folder/signature" "$installer" 2> "$folder/errors")
    then
      signer=$(echo "$output" | sed -n 's/^\[GNUPG:\] VALIDSIG .* //p')
    else
      refuse "the signature is not valid: $(grep -v '^gpgv: Signature made' "$folder/errors" | tr '\n' ' ')"
    fi
    [ "$signer" = "$(echo "$expected" | tr -d ' ')" ] ||
      refuse "the installer is signed by ${signer:-no key}, and only $expected is trusted (efa_signing_key_fingerprint)"
    ;;
esac

rm -rf "$folder/unpacked"
mkdir "$folder/unpacked"
tar -xzf "$installer" --no-same-owner -C "$folder/unpacked"
cd "$folder/unpacked/aws-efa-installer" || refuse "the archive has no folder aws-efa-installer"

if ! env DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1 ./efa_installer.sh "$@" > "$log" 2>&1 < /dev/null; then
  echo "The EFA installer failed; the last lines of $log:" >&2
  tail -n 40 "$log" >&2
  exit 1
fi
if grep -q 'Please reboot' "$log"; then
  mkdir -p "$(dirname "$reboot_file")"
  echo "efa: the installer could not unload the older driver, which is in use" > "$reboot_file"
fi
rm -rf "$folder"
