"""Commands that go on in a sandbox while nobody waits: begun whole, or not at all."""

import subprocess
from pathlib import Path
from shlex import quote

from agentsvc.base.values import new_id
from agentsvc.extension.commands import LOOK

FULL = 'mount -t tmpfs -o size=8k tmpfs "$HOME" && sh -c "$1"'


def test_a_command_that_the_disk_has_no_room_for_is_not_begun(tmp_path: Path) -> None:
    home, place = tmp_path / "home", tmp_path / "place"
    home.mkdir()
    place.mkdir()
    command = quote("touch begun\n" + "# and more\n" * 2000)
    script = LOOK.format(id=new_id(), command=command, place=quote(str(place)), shown=100)
    ended = subprocess.run(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", FULL, "sh", script],
        env={"HOME": str(home), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert ended.stdout == "lost\n"
    assert list(place.iterdir()) == []
