"""Downloads over loopback that are cut, changed or hostile."""
import contextlib
import fcntl
import functools
import hashlib
import http.server
import io
import os
import random
import re
import tarfile
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rpr.problems import download
from rpr.utils.errors import UserError

CONTENT = random.Random(0).randbytes(300_000)


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves a dictionary of files, with ranges; may cut answers short."""

    declares_length = True

    def __init__(self, site, *args):
        self.site = site
        super().__init__(*args)

    def do_GET(self):
        site = self.site
        content = site.files.get(self.path.lstrip("/"))
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(asked[1]) if asked and site.ranges else 0
        site.requests.append(start)
        if content is None:
            self.send_error(404)
            return
        if start and start >= len(content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(content)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        rest = content[start:]
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        if self.declares_length:
            self.send_header("Content-Length", str(len(rest)))
        self.end_headers()
        sent = rest[:site.cuts.pop(0)] if site.cuts else rest
        site.sent += len(sent)
        with contextlib.suppress(ConnectionError):
            self.wfile.write(sent)

    def log_message(self, *_):
        pass


class Site:
    """A loopback HTTP server."""

    def __init__(self):
        self.files, self.cuts, self.requests = {}, [], []
        self.ranges, self.sent = True, 0
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0),
                                                       functools.partial(Handler, self))
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()


def remote(url, content=CONTENT):
    return download.Remote(url, "sha256:" + hashlib.sha256(content).hexdigest(), len(content))


@pytest.fixture
def site(monkeypatch):
    monkeypatch.setattr(download, "_WAIT_SECONDS", 0.0)
    monkeypatch.delenv("RPR_MIRROR", raising=False)
    with Site() as served:
        served.files["data.tgz"] = CONTENT
        yield served


def visible(folder):
    return sorted(name for name in os.listdir(folder) if not name.startswith("."))


def test_a_file_is_fetched_once(site, tmp_path):
    for _ in range(2):
        path = download.fetch(remote(site.url + "/data.tgz"), str(tmp_path))
        assert open(path, "rb").read() == CONTENT
    assert visible(tmp_path) == ["data.tgz"] and site.requests == [0]


@settings(max_examples=15,
          suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.integers(1, 90_000), max_size=6))
def test_cut_connections_are_resumed(site, tmp_path_factory, cuts):
    folder = tmp_path_factory.mktemp("cut")
    site.cuts, site.requests, site.sent = list(cuts), [], 0
    path = download.fetch(remote(site.url + "/data.tgz"), str(folder))
    assert open(path, "rb").read() == CONTENT and visible(folder) == ["data.tgz"]
    # What had arrived was not asked for again.
    assert site.sent == len(CONTENT) and site.requests == sorted(set(site.requests))
    assert sum(cuts) >= len(CONTENT) or len(site.requests) == 1 + len(cuts)


def test_a_killed_download_goes_on(site, tmp_path):
    (tmp_path / "data.tgz.part").write_bytes(CONTENT[:123_456])
    download.fetch(remote(site.url + "/data.tgz"), str(tmp_path))
    assert site.requests == [123_456] and site.sent == len(CONTENT) - 123_456


def test_a_server_without_ranges_sends_it_all(site, tmp_path):
    (tmp_path / "data.tgz.part").write_bytes(CONTENT[:1000])
    site.ranges = False
    path = download.fetch(remote(site.url + "/data.tgz"), str(tmp_path))
    assert open(path, "rb").read() == CONTENT


@pytest.mark.parametrize("extra", [b"", b"too much"])
def test_a_part_with_nothing_left_to_fetch(site, tmp_path, extra):
    (tmp_path / "data.tgz.part").write_bytes(CONTENT + extra)
    path = download.fetch(remote(site.url + "/data.tgz"), str(tmp_path))
    assert open(path, "rb").read() == CONTENT


@pytest.mark.parametrize("changed", [CONTENT[:-1] + b"?", CONTENT + b"?", CONTENT[:1000]])
def test_a_changed_file_is_refused_and_leaves_nothing(site, tmp_path, changed):
    site.files["data.tgz"] = changed
    with pytest.raises(UserError, match="expected"):
        download.fetch(remote(site.url + "/data.tgz"), str(tmp_path))
    assert visible(tmp_path) == []


def test_a_foreign_file_on_disk_is_refused_and_kept(site, tmp_path):
    (tmp_path / "data.tgz").write_bytes(CONTENT[::-1])
    with pytest.raises(UserError, match=r"data\.tgz is not the file that is expected \(sha256"):
        download.fetch(remote(site.url + "/data.tgz"), str(tmp_path))
    assert (tmp_path / "data.tgz").read_bytes() == CONTENT[::-1] and site.requests == []


def test_a_missing_file_is_not_asked_for_twice(site, tmp_path):
    with pytest.raises(UserError, match=r"/other\.tgz: HTTP 404 .*RPR_MIRROR"):
        download.fetch(remote(site.url + "/other.tgz"), str(tmp_path))
    assert len(site.requests) == 1 and visible(tmp_path) == []


@pytest.mark.parametrize("declared", [True, False])
def test_a_download_stops_at_the_expected_size(site, tmp_path, monkeypatch, declared):
    """A server that sends without end cannot fill the disk, whatever length it declares."""
    site.files["data.tgz"] = CONTENT * 50
    if not declared:
        monkeypatch.setattr(Handler, "declares_length", False)
    with pytest.raises(UserError, match="sends more than the 300,000 bytes that are expected"):
        download.fetch(remote(site.url + "/data.tgz"), str(tmp_path))
    assert visible(tmp_path) == [] and len(site.requests) == 1


def test_a_download_without_a_known_size_is_limited(site, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "_LARGEST_UNKNOWN", 1000)
    wanted = download.Remote(site.url + "/data.tgz", remote("").digest)
    with pytest.raises(UserError, match="sends more than the 1,000 bytes"):
        download.fetch(wanted, str(tmp_path))


def test_a_download_is_not_written_through_a_link(site, tmp_path):
    (tmp_path / "private").write_text("mine")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "data.tgz.part").symlink_to(tmp_path / "private")
    with pytest.raises(UserError, match=r"data\.tgz\.part: Too many levels of symbolic links"):
        download.fetch(remote(site.url + "/data.tgz"), str(tmp_path / "cache"))
    assert (tmp_path / "private").read_text() == "mine"


def test_a_dead_server_is_given_up_and_what_arrived_is_kept(site, tmp_path):
    site.cuts = [5000] + [0] * 100
    with pytest.raises(UserError, match="cannot download .* continues from there"):
        download.fetch(remote(site.url + "/data.tgz"), str(tmp_path))
    assert (tmp_path / "data.tgz.part").read_bytes() == CONTENT[:5000]
    site.cuts = []
    download.fetch(remote(site.url + "/data.tgz"), str(tmp_path))
    assert visible(tmp_path) == ["data.tgz"] and site.requests[-1] == 5000


def test_an_unknown_host_gets_one_line(site, tmp_path):
    with pytest.raises(UserError, match="cannot download http://nowhere.invalid/x: ") as caught:
        download.fetch(remote("http://nowhere.invalid/x"), str(tmp_path))
    assert "\n" not in str(caught.value)


def test_a_mirror_url_stands_in(site, tmp_path, monkeypatch):
    monkeypatch.setenv("RPR_MIRROR", site.url + "/")
    path = download.fetch(remote("http://nowhere.invalid/deep/data.tgz"), str(tmp_path))
    assert open(path, "rb").read() == CONTENT


def test_a_mirror_directory_is_used_in_place_and_checked(tmp_path, monkeypatch):
    monkeypatch.setenv("RPR_MIRROR", str(tmp_path))
    wanted = remote("http://nowhere.invalid/deep/data.tgz")
    with pytest.raises(UserError, match="there is no data.tgz in it"):
        download.fetch(wanted, str(tmp_path / "unused"))
    (tmp_path / "data.tgz").write_bytes(CONTENT)
    assert download.fetch(wanted, str(tmp_path / "unused")) == str(tmp_path / "data.tgz")
    (tmp_path / "data.tgz").write_bytes(CONTENT[:-1])
    with pytest.raises(UserError, match="299,999 bytes, 300,000 are expected"):
        download.fetch(wanted, str(tmp_path / "unused"))


MEMBERS = {"training/x.en": b"hello\n" * 3000, "training/x.de": b"hallo\n" * 3000}


def tar(path, members, mode="w:gz", extra=()):
    with tarfile.open(path, mode) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        for info in extra:
            archive.addfile(info)
    return str(path)


@pytest.mark.parametrize("mode", ["w:gz", "w", "w:bz2"])
@pytest.mark.parametrize("prefix", ["", "./"])
def test_members_are_unpacked(tmp_path, mode, prefix):
    archive = tar(tmp_path / "a", {"other": b"no", **{prefix + k: v for k, v in MEMBERS.items()}},
                  mode)
    paths = download.extract(archive, list(MEMBERS), str(tmp_path / "out"))
    assert {name: open(path, "rb").read() for name, path in paths.items()} == MEMBERS
    assert sorted(os.listdir(tmp_path / "out" / "training")) == ["x.de", "x.en"]


def link(name, target, kind=tarfile.SYMTYPE):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize("bad", [
    link("training/y", "/etc/passwd"), link("y", "../../evil"),
    link("y", "../evil", tarfile.LNKTYPE), link("y", "/evil", tarfile.LNKTYPE),
    link("dev", "", tarfile.CHRTYPE), tarfile.TarInfo("../evil"),
    tarfile.TarInfo("training/../../evil")])
def test_a_hostile_archive_is_refused_as_a_whole(tmp_path, bad):
    archive = tar(tmp_path / "a.tgz", MEMBERS, extra=[bad])
    with pytest.raises(UserError, match="is refused: its member '.*' points outside"):
        download.extract(archive, list(MEMBERS), str(tmp_path / "out"))
    assert not (tmp_path / "evil").exists() and not (tmp_path / "out" / "evil").exists()


def test_a_wanted_member_that_is_a_link_is_not_followed(tmp_path):
    archive = tar(tmp_path / "a.tgz", {"training/x.en": b"a"}, extra=[
        link("training/x.de", "x.en")])
    with pytest.raises(UserError, match="does not contain training/x.de"):
        download.extract(archive, list(MEMBERS), str(tmp_path / "out"))


@pytest.mark.parametrize("member", ["training/x.en", "other"])
def test_an_archive_cannot_fill_the_disk(tmp_path, monkeypatch, member):
    """Whatever compresses to a thousandth is refused before it is written."""
    monkeypatch.setattr(download, "_SMALL", 10**5)
    archive = tar(tmp_path / "a.tgz", {**MEMBERS, member: bytes(10**7)})
    with pytest.raises(UserError, match="members are more than 50 times as large as the archive"):
        download.extract(archive, list(MEMBERS), str(tmp_path / "out"))
    written = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in written) <= sum(map(len, MEMBERS.values()))


@settings(max_examples=40)
@given(data=st.data())
def test_a_cut_archive_gives_all_or_an_error(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("cut")
    archive = tar(folder / "a", MEMBERS, data.draw(st.sampled_from(["w", "w:gz"])))
    size = os.path.getsize(archive)
    os.truncate(archive, data.draw(st.integers(0, size)))
    try:
        paths = download.extract(archive, list(MEMBERS), str(folder / "out"))
    except UserError:
        return
    # Only the archive's padding was cut.
    assert {name: open(path, "rb").read() for name, path in paths.items()} == MEMBERS


@pytest.mark.parametrize("left", range(12))
def test_an_archive_cut_in_its_header_is_called_damaged(tmp_path, left):
    archive = tar(tmp_path / "a.tgz", MEMBERS)
    os.truncate(archive, left)
    with pytest.raises(UserError, match="damaged"):
        download.extract(archive, list(MEMBERS), str(tmp_path / "out"))


def test_half_an_archive_is_called_damaged(tmp_path):
    archive = tar(tmp_path / "a.tgz", {"training/x.en": CONTENT, "training/x.de": CONTENT})
    os.truncate(archive, os.path.getsize(archive) // 2)
    with pytest.raises(UserError, match="damaged"):
        download.extract(archive, list(MEMBERS), str(tmp_path / "out"))


# Files in the directory of downloads that somebody else may have written.

def fetch_members(site, tmp_path):
    archive = tar(tmp_path / "a.tgz", MEMBERS)
    site.files["a.tgz"] = open(archive, "rb").read()
    wanted = remote(site.url + "/a.tgz", site.files["a.tgz"])
    return download.fetch_members(wanted, tuple(MEMBERS), str(tmp_path / "tmp"))


def test_an_archive_is_unpacked_once_for_this_process_alone(site, tmp_path):
    paths = fetch_members(site, tmp_path)
    assert [open(path, "rb").read() for path in paths] == list(MEMBERS.values())
    assert fetch_members(site, tmp_path) == paths and site.requests == [0]
    folder, = (tmp_path / "tmp").glob(".a.tgz.files-*")
    assert folder.stat().st_mode & 0o777 == 0o700 and paths[0].startswith(str(folder))


def test_planted_members_are_neither_used_nor_written_through(site, tmp_path):
    planted = tmp_path / "tmp" / "a.tgz.files"        # the folder of an earlier version
    (planted / "training").mkdir(parents=True)
    (tmp_path / "private").write_text("mine")
    for name in MEMBERS:
        (planted / os.path.basename(name)).write_text("planted")
        (planted / f"{os.path.basename(name)}.part").symlink_to(tmp_path / "private")
    paths = fetch_members(site, tmp_path)
    assert [open(path, "rb").read() for path in paths] == list(MEMBERS.values())
    assert (tmp_path / "private").read_text() == "mine"


def test_what_a_killed_process_unpacked_is_removed(site, tmp_path):
    stale = tmp_path / "tmp" / ".a.tgz.files-x"
    stale.mkdir(parents=True)
    (stale / "x.en").write_text("old")
    (tmp_path / "precious").mkdir()
    (tmp_path / "tmp" / ".a.tgz.files-y").symlink_to(tmp_path / "precious")
    used = tmp_path / "tmp" / ".a.tgz.files-z"
    used.mkdir()
    descriptor = os.open(used, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    fetch_members(site, tmp_path)
    os.close(descriptor)
    assert not stale.exists() and used.exists() and (tmp_path / "precious").exists()


def test_text_that_everybody_may_write_is_not_used(tmp_path):
    (tmp_path / "x.en").touch()
    (tmp_path / "x.en").chmod(0o666)
    with pytest.raises(UserError, match=r"x\.en is not trusted: every user may write"):
        download.refuse_foreign(str(tmp_path / "x.en"))


def test_text_of_another_user_is_not_used(tmp_path, monkeypatch):
    lstat = os.lstat

    def foreign(path, *args, **kwargs):
        status = lstat(path, *args, **kwargs)
        return os.stat_result([*status[:4], 54321, *status[5:]])     # st_uid

    (tmp_path / "x.en").touch()
    monkeypatch.setattr(os, "lstat", foreign)
    with pytest.raises(UserError, match="is not trusted: it belongs to another user"):
        download.refuse_foreign(str(tmp_path / "x.en"))


def test_text_behind_a_link_is_not_used(tmp_path):
    (tmp_path / "x.en").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="is not trusted: it is a symbolic link"):
        download.refuse_foreign(str(tmp_path / "x.en"))


def test_a_named_pipe_in_place_of_a_partial_download_does_not_hang(site, tmp_path):
    os.mkfifo(tmp_path / "data.tgz.part")
    with pytest.raises(UserError, match=r"data\.tgz\.part: No such device or address"):
        download.fetch(remote(site.url + "/data.tgz"), str(tmp_path))


def test_the_default_directory_of_downloads_is_the_users_own(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert download.default_directory() == str(tmp_path / "rpr")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert download.default_directory() == "/home/somebody/.cache/rpr"
