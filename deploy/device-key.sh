#!/bin/sh
# The key with which a device proves who it is.
#
#   device-key.sh DIR NAME
#
# Makes DIR/NAME.key, which stays on the device, and DIR/NAME.pub, which the operator registers.
# Flower reads both only in OpenSSH's format, hence ssh-keygen and not openssl.
set -eu
umask 077

fail() {
    echo "device-key.sh: $*" >&2
    exit 1
}

[ $# -eq 2 ] || fail "$# arguments; use: device-key.sh DIR NAME"
dir=$1 name=$2
case $name in
    '' | [!0-9A-Za-z]* | *[!0-9A-Za-z._-]*)
        fail "name \"$name\": must be letters, digits, dots, hyphens and underscores" ;;
esac
command -v ssh-keygen >/dev/null ||
    fail "ssh-keygen was not found; install it (Debian: apt-get install openssh-client)"
mkdir -p "$dir" 2>/dev/null || fail "$dir: cannot be made; name a folder that can"
for file in "$dir/$name.key" "$dir/$name.pub"; do
    [ ! -e "$file" ] || fail "$file is there already; remove it, or give another name"
done

new=$(mktemp -d "$dir/.new.XXXXXX" 2>/dev/null) || fail "$dir: cannot be written to;" \
    "name a folder that can"
trap 'rm -rf "$new"' EXIT
ssh-keygen -q -t ecdsa -b 384 -N '' -C "$name" -f "$new/key" 2>"$new/errors" ||
    fail "ssh-keygen in $dir: $(tail -n 1 "$new/errors")"
chmod 644 "$new/key.pub"
mv "$new/key.pub" "$dir/$name.pub"
mv "$new/key" "$dir/$name.key"
echo "$dir/$name.key stays on the device; $dir/$name.pub is to be registered"
