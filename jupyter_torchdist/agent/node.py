"""What an agent finds out about its node."""

from __future__ import annotations

import importlib.metadata
import ipaddress
import platform
import socket

import psutil

from jupyter_torchdist.records import NodeInfo


def version_of(package: str) -> str:
    """The installed version, "" where there is none; nothing is imported."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def interface_of(address: str) -> str:
    """The network interface that carries ``address``, "" when none does."""
    wanted = ipaddress.ip_address(address)
    for name, entries in psutil.net_if_addrs().items():
        for entry in entries:
            if entry.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            if ipaddress.ip_address(entry.address.partition("%")[0]) == wanted:
                return name
    return ""


def node_info(node_id: str, address: str) -> NodeInfo:
    """``address``: the node's IP as Ray knows it."""
    return NodeInfo(
        node_id=node_id,
        host=socket.gethostname(),
        address=address,
        python=platform.python_version(),
        torch=version_of("torch"),
        interface=interface_of(address),
    )


def listen(address: str) -> socket.socket:
    """A listening socket on a free port of ``address``: the port is taken from here on, so no run can lose it."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.bind((address, 0))
    sock.listen(512)
    return sock
