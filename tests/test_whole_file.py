"""What is written for the user is whole, or the old file."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nat_finetune.errors import OutputError
from nat_finetune.whole_file import write_whole

FULL = """
import resource, signal, sys
from pathlib import Path
from nat_finetune.whole_file import write_whole
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
write_whole(Path(sys.argv[1]), "x" * 100_000)
"""


def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "report.xml"
    path.write_text("old")
    ended = subprocess.run([sys.executable, "-c", FULL, str(path)], capture_output=True, text=True, check=False)
    assert "OutputError" in ended.stderr
    assert (path.read_text(), os.listdir(tmp_path)) == ("old", ["report.xml"])


def test_a_link_stays_one_and_rights_stay(tmp_path):
    path, link = tmp_path / "file", tmp_path / "link"
    path.write_text("old")
    path.chmod(0o600)
    link.symlink_to("file")
    write_whole(link, "new\n", "\r\n")
    assert (path.read_bytes(), link.is_symlink(), path.stat().st_mode & 0o777) == (b"new\r\n", True, 0o600)


def test_what_is_no_file_is_written_through_or_refused(tmp_path):
    write_whole(Path("/dev/null"), "gone")
    for place in (tmp_path, tmp_path / "none" / "x"):
        with pytest.raises(OutputError, match="can't be written"):
            write_whole(place, "x")
