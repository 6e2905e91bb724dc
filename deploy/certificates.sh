#!/bin/sh
# A CA and the certificate of the server, for the SuperLink, the proxy and the channel.
#
#   certificates.sh [--days N] DIR NAME-OR-IP...
#
# Makes ca.key, ca.crt, server.key and server.crt in DIR. The certificate holds for all NAMEs and
# IPs and for localhost, by which the SuperLink's own processes and the proxy know the SuperLink.
# A CA that is there is used again: run it once more to renew the certificate, and devices, which
# hold only ca.crt, need nothing new. N days (365); a negative N makes one that has expired.
# Devices get ca.crt, servers also server.crt and server.key. ca.key goes nowhere.
set -eu
umask 077

CA_DAYS=3650

fail() {
    echo "certificates.sh: $*" >&2
    exit 1
}

# Run openssl; of what it complains about only the last line is shown.
ssl() {
    openssl "$@" 2>"$new/errors" && return
    fail "openssl $1 in $dir: $(tail -n 1 "$new/errors")"
}

is_ipv4() (
    IFS=.
    # shellcheck disable=SC2086 # to be split at the dots
    set -- $1
    [ $# -eq 4 ] || return 1
    for part; do
        case $part in '' | ????*) return 1 ;; esac
        [ "$part" -le 255 ] || return 1
    done
)

# Print a name or an address as a SAN entry.
san() {
    case $1 in
        '' | [.-]* | *[!0-9A-Za-z.:-]* | *:*[!0-9A-Fa-f:.]* | *[!0-9A-Fa-f:.]*:*) ;;
        *:*:*) echo "IP:$1" && return ;;
        *:*) ;;
        *[!0-9.]*) echo "DNS:$1" && return ;;
        *) if is_ipv4 "$1"; then echo "IP:$1" && return; fi ;;
    esac
    fail "\"$1\": is no host name or IP address; give it without port and scheme"
}

# issue NAME SUBJECT DAYS SIGNER...: make NAME.key and NAME.crt with the extensions that it reads.
# `req -x509 -addext` is no way to: LibreSSL and OpenSSL 1.1.1 keep those of their own configuration
# beside them, and clients refuse a certificate that has an extension twice.
issue() {
    name=$1 subject=$2 valid=$3
    shift 3
    cat >"$new/extensions"
    ssl ecparam -name prime256v1 -genkey -noout -out "$new/$name.key"
    ssl req -new -key "$new/$name.key" -subj "/CN=$subject" -out "$new/request"
    ssl x509 -req -in "$new/request" -sha256 -days "$valid" -set_serial "0x$(openssl rand -hex 16)" \
        "$@" -extfile "$new/extensions" -out "$new/$name.crt"
    chmod 644 "$new/$name.crt"
    mv "$new/$name.key" "$new/$name.crt" "$dir"
}

make_ca() {
    issue ca "fedapps CA" "$CA_DAYS" -signkey "$new/ca.key" <<EOF
basicConstraints=critical,CA:TRUE,pathlen:0
keyUsage=critical,keyCertSign,cRLSign
subjectKeyIdentifier=hash
EOF
}

# Refuse a CA that is not whole or, be it a new one, ends before the certificate would.
check_ca() {
    for name in ca.key ca.crt; do
        [ -f "$dir/$name" ] || fail "$dir/$name is missing; put it back, or name a new folder"
    done
    ssl x509 -in "$dir/ca.crt" -noout -pubkey >"$new/of-crt"
    ssl pkey -in "$dir/ca.key" -pubout >"$new/of-key"
    cmp -s "$new/of-crt" "$new/of-key" ||
        fail "$dir/ca.key does not belong to $dir/ca.crt; put the right one back"
    openssl x509 -in "$dir/ca.crt" -noout \
        -checkend "$((days > 0 ? days * 86400 : 0))" >"$new/end" ||
        fail "$dir/ca.crt ends before $days days are over;" \
            "give --days less, or make a new CA in a new folder"
    openssl verify -CAfile "$dir/ca.crt" "$dir/ca.crt" >"$new/verified" 2>&1 ||
        fail "$dir/ca.crt: clients would refuse this CA; make a new one in a new folder"
}

make_certificate() {
    issue server "fedapps server" "$days" -CA "$dir/ca.crt" -CAkey "$dir/ca.key" <<EOF
basicConstraints=critical,CA:FALSE
keyUsage=critical,digitalSignature
extendedKeyUsage=serverAuth
subjectKeyIdentifier=hash
authorityKeyIdentifier=keyid
subjectAltName=$sans
EOF
}

days=365
if [ "${1-}" = --days ]; then
    days=${2-}
    case ${days#-} in
        '' | *[!0-9]* | 0?* | ?????*)
            fail "--days \"$days\": must be a whole number up to 9999, without zeros in front" ;;
    esac
    shift 2
fi
[ $# -ge 2 ] || fail "too few arguments; use: certificates.sh [--days N] DIR NAME-OR-IP..."
dir=$1
shift
command -v openssl >/dev/null || fail "openssl was not found;" \
    "install it (Debian: apt-get install openssl)"

sans=DNS:localhost,IP:127.0.0.1,IP:::1
for name; do
    entry=$(san "$name")
    sans=$sans,$entry
done

mkdir -p "$dir" 2>/dev/null || fail "$dir: cannot be made; name a folder that can"
# Beside the result, so that a file is there whole or not at all.
new=$(mktemp -d "$dir/.new.XXXXXX" 2>/dev/null) || fail "$dir: cannot be written to;" \
    "name a folder that can"
trap 'rm -rf "$new"' EXIT

[ -e "$dir/ca.key" ] || [ -e "$dir/ca.crt" ] || make_ca
check_ca
make_certificate
ssl x509 -in "$dir/server.crt" -noout -enddate >"$new/end"
echo "$dir/server.crt for $sans until $(cut -d= -f2 "$new/end")"
