"""atomic_write: the old contents or the new, whatever happens in between."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from npxl.errors import NpxlError
from npxl.files import atomic_write


def names(folder):
    return sorted(os.listdir(folder))


def test_a_new_file_appears_only_when_it_is_complete(tmp_path):
    target = tmp_path / "state"
    with atomic_write(target) as file:
        file.write(b"first half, ")
        file.flush()
        assert not target.exists()
        file.write(b"second half")
    assert target.read_bytes() == b"first half, second half"
    assert names(tmp_path) == ["state"]


def test_an_old_file_stays_readable_until_it_is_replaced(tmp_path):
    target = tmp_path / "state"
    target.write_bytes(b"old")
    with atomic_write(target) as file:
        file.write(b"new and longer")
        file.flush()
        assert target.read_bytes() == b"old"
    assert target.read_bytes() == b"new and longer"


@pytest.mark.parametrize("error", [RuntimeError("bug"), KeyboardInterrupt()])
def test_an_interrupted_write_leaves_the_old_file_and_no_other(tmp_path, error):
    target = tmp_path / "state"
    target.write_bytes(b"old")

    def write_half():
        with atomic_write(target) as file:
            file.write(b"half of the new")
            raise error

    with pytest.raises(type(error)):
        write_half()
    assert target.read_bytes() == b"old"
    assert names(tmp_path) == ["state"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_noticed_late_leaves_the_old_file(tmp_path, monkeypatch, call, code):
    target = tmp_path / "state"
    target.write_bytes(b"old")

    def full(*args):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, call, full)
    with pytest.raises(NpxlError, match="no room left") as caught, atomic_write(target) as file:
        file.write(b"new")
    assert str(tmp_path) in str(caught.value)
    assert target.read_bytes() == b"old"
    assert names(tmp_path) == ["state"]


@pytest.mark.skipif(os.name != "posix", reason="needs a limit on the size of files")
@pytest.mark.parametrize("size", [3_000, 3_000_000], ids=["found by flush", "found by write"])
def test_a_write_that_the_system_refuses_leaves_the_old_file(tmp_path, size):
    """The real thing: the system stops the file after 1,000 bytes."""
    target = tmp_path / "state"
    target.write_bytes(b"old")
    program = (
        "import resource, sys\n"
        "from npxl.errors import NpxlError\n"
        "from npxl.files import atomic_write\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try:\n"
        "    with atomic_write(sys.argv[1]) as file:\n"
        "        file.write(bytes(int(sys.argv[2])))\n"
        "except NpxlError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(target), str(size)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],
    )
    assert done.returncode == 0, done.stderr
    assert "no room left" in done.stdout
    assert str(tmp_path) in done.stdout
    assert target.read_bytes() == b"old"
    assert names(tmp_path) == ["state"]


@pytest.mark.fault("burn #5479")
@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_a_killed_writer_leaves_the_old_file(tmp_path):
    target = tmp_path / "state"
    target.write_bytes(b"old")
    program = (
        "import os, signal, sys\n"
        "from npxl.files import atomic_write\n"
        "with atomic_write(sys.argv[1]) as file:\n"
        "    file.write(bytes(100_000))\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(target)], cwd=Path(__file__).parents[1]
    )
    assert done.returncode == -signal.SIGKILL
    assert target.read_bytes() == b"old"
    assert [name for name in names(tmp_path) if not name.startswith(".state.")] == ["state"]


@pytest.mark.fault("burn #5479")
def test_data_reach_the_disk_before_the_name_and_the_name_after(tmp_path, monkeypatch):
    """A power cut between the steps must find one of the two files complete."""
    steps = []
    fsync, replace = os.fsync, os.replace

    def spy_fsync(descriptor):
        folder = os.path.samestat(os.fstat(descriptor), os.stat(tmp_path))
        size = os.fstat(descriptor).st_size
        steps.append("sync folder" if folder else f"sync {size} bytes")
        fsync(descriptor)

    def spy_replace(old, new):
        steps.append("rename")
        replace(old, new)

    monkeypatch.setattr(os, "fsync", spy_fsync)
    monkeypatch.setattr(os, "replace", spy_replace)
    with atomic_write(tmp_path / "state") as file:
        file.write(b"12345")
    expected = ["sync 5 bytes", "rename"] + ["sync folder"] * (os.name == "posix")
    assert steps == expected


def test_two_writers_do_not_mix(tmp_path):
    target = tmp_path / "state"
    with atomic_write(target) as one:
        one.write(b"one")
        with atomic_write(target) as two:
            two.write(b"two, longer")
        assert target.read_bytes() == b"two, longer"
    assert target.read_bytes() == b"one"
    assert names(tmp_path) == ["state"]


@pytest.mark.skipif(os.name != "posix", reason="needs symbolic links")
def test_a_symbolic_link_stays_one(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "state").write_bytes(b"old")
    (tmp_path / "link").symlink_to(tmp_path / "real" / "state")
    with atomic_write(tmp_path / "link") as file:
        file.write(b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "state").read_bytes() == b"new"
    assert names(tmp_path / "real") == ["state"]


@pytest.mark.skipif(os.name != "posix", reason="needs a umask")
def test_the_new_file_is_as_readable_as_any_other(tmp_path):
    (tmp_path / "ordinary").write_bytes(b"")
    with atomic_write(tmp_path / "state"):
        pass
    ordinary, state = (tmp_path / name for name in ("ordinary", "state"))
    assert state.stat().st_mode == ordinary.stat().st_mode


def test_a_missing_folder_is_the_systems_error(tmp_path):
    state = tmp_path / "nowhere" / "state"
    with pytest.raises(FileNotFoundError) as error, atomic_write(state):
        pass
    assert error.value.filename == str(state)  # and not the temporary one
