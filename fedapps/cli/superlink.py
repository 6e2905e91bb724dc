"""Start the server to which devices connect: Flower's SuperLink, but it takes less time."""

import sys
from collections.abc import Sequence

HELP = """\
usage: fedapps superlink OPTIONS   (the options of flower-superlink)

Start the server to which devices connect. It is Flower's SuperLink, but it takes less than half as
long for a request, and offers long polling: a device hears of a message at once, and not when it
asks again.

options that a deployment needs:
  --host 127.0.0.1 --port 8000   where it listens: behind a proxy, for this machine only
  --ssl-ca-certfile FILE, --ssl-certfile FILE, --ssl-keyfile FILE
                                 certificates of the CA and of the server, and the server's key
  --enable-supernode-auth        let in only devices whose key is registered
  --disable-runtime-dependency-installation
                                 run what is installed; fetch nothing for a run
  --database FILE                still know the registered devices after a restart

examples:
  fedapps superlink --insecure --host 127.0.0.1 --port 8000   # to try it out on one machine

`flower-superlink --help` lists all options. deploy/README.md sets up three devices step by step.\
"""


def hand_on(words: Sequence[str]) -> int:
    """Run a SuperLink with these options until it is told to end."""
    if not words or words[0] in ("-h", "--help"):
        print(HELP)
        return 0
    from fedapps.wire.superlink import main

    sys.argv = ["flower-superlink", *words]
    main()
    return 0
