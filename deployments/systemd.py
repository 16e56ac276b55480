"""A systemd user unit that serves a root."""

from __future__ import annotations

import sys
from pathlib import Path

_UNIT = """\
# Put into ~/.config/systemd/user/unitball.service, then: systemctl --user enable --now unitball
# So that it runs while nobody is logged in: loginctl enable-linger
[Unit]
Description=Unitball: Prefect, MLflow and the runner of the flows
After=network.target

[Service]
Type=exec
Environment={root}
ExecStart={program} -P -m deployments serve
# Ctrl-C's order: the runner first, the databases last; what is left of a process group is ended after that.
KillMode=mixed
TimeoutStopSec=90
Restart=on-failure
RestartSec=10
UMask=0077
NoNewPrivileges=true

[Install]
WantedBy=default.target
"""


def unit_of(root: Path) -> str:
    """Return the text of a unit that serves ``root`` with the Python that runs this.

    Notes
    -----
    A password in ``UNITBALL_DATABASE`` does not belong here: the root remembers its databases after the first
    ``unitball serve --database``.
    """
    return _UNIT.format(root=_quoted(f"UNITBALL_ROOT={root}"), program=_quoted(sys.executable))


def _quoted(text: str) -> str:
    # A percent sign begins a specifier, and a dollar a variable.
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'
