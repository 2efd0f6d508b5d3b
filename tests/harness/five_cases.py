"""Two jobs couple across five networks: fabric, LAN, WAN, LAN, fabric."""

import signal

from .routed_cases import Case, Pair, coupled, survived


def routers_killed(c):
    """At one site a router of each kind is killed under transfers: the others carry on."""
    with Pair(c, 6) as pair:
        pair.get_going()
        for router in c.net.one_of_each("a"):
            router.send(signal.SIGKILL)
        return survived(pair, 60, most=15)


CASES = {
    case.name: case
    for case in (
        Case("coupled", coupled, places=("five",), shape="five"),
        Case("routers-killed", routers_killed, places=("five",), shape="five"),
    )
}
