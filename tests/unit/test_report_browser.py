"""Reports in a browser: hostile text runs no script and loads nothing; tables can be explored."""
import base64
import hashlib
import http.server
import json
import re
import shutil
import subprocess
import threading

import pytest
from report_runs import REFERENCE, SOURCE, unchanged, write_run, write_study

from rpr.cli import report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync",
         "--virtual-time-budget=3000", "--dump-dom")


@pytest.fixture
def requests():
    """The paths that were asked for from a server; the first item is its address."""
    found = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            found.append(self.path)
            self.send_error(404)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    found.append(f"http://127.0.0.1:{server.server_port}")
    yield found
    server.shutdown()
    server.server_close()


def title_of(page, folder):
    """The title of a page after its scripts have run."""
    dom = subprocess.run([CHROMIUM, *FLAGS, f"--user-data-dir={folder}", page.as_uri()],
                         capture_output=True, text=True, timeout=120, check=True).stdout
    return re.search(r"<title>(.*?)</title>", dom, re.DOTALL)[1]


@pytest.mark.skipif(not CHROMIUM, reason="Chromium is not installed")
def test_a_browser_runs_and_loads_nothing_that_a_directory_names(tmp_path, requests):
    evil = (f"</td></pre></style><img src='{requests[0]}/image' onerror=\"document.title='owned'\">"
            f"<script src='{requests[0]}/script'></script><script>document.title='owned'</script>"
            f"<link rel=stylesheet href={requests[0]}/style>")
    control = tmp_path / "control.html"
    control.write_text(f"<title>before</title><table><td>{evil}")
    assert title_of(control, tmp_path / "profile") == "owned" and len(requests) > 1
    del requests[1:]

    study = tmp_path / "study"
    for seed in (1, 2):
        for name in ("a", "b"):
            write_run(study, f"{name}-{seed}", seed=seed,
                      hypotheses=[evil, *(REFERENCE if name == "b" else SOURCE)[1:]])
            for text in ("source", "reference"):
                path = study / f"{name}-{seed}" / f"{text}.test.txt"
                path.write_text("\n".join([f"{evil} a b c", *path.read_text().split("\n")[1:]]))
            (study / f"{name}-{seed}" / "environment.json").write_text(
                f'{{"python": "{evil.replace(chr(34), chr(39))}"}}')
    write_study(study, {f"{evil} {name}": ({"position": evil}, None,
                                           {seed: f"{name}-{seed}" for seed in (1, 2)})
                        for name in ("a", "b")}, f"{evil} a")
    (study / "study.gin").write_text(evil)
    report.main([str(study), "--skip_model_analysis", "--sample_translations=60"])
    assert title_of(study / "report.html", tmp_path / "profile") == "study" and not requests[1:]


EXPLORE = """
const texts = (selector) => [...document.querySelectorAll(selector)].map(
  (part) => part.textContent);
const names = () => texts("table.sortable:first-of-type tbody tr td:first-child").slice(0, 3);
const visible = (selector) => [...document.querySelectorAll(selector)].filter(
  (part) => getComputedStyle(part).display !== "none").length;
const found = {before: names(), hidden: visible("[hidden]")};
const bleu = [...document.querySelectorAll("th")].find((part) => part.textContent === "BLEU");
bleu.click();
found.ascending = names();
bleu.click();
found.descending = names();
found.curves = [visible("g[id=arm0]"), visible("g[id=arm1]")];
document.querySelector(".arms input[value='1']").click();
found.switched = [visible("g[id=arm0]"), visible("g[id=arm1]"), visible("tr[data-arm='1']")];
found.samples = visible(".sample");
const most = document.querySelectorAll(".filter input")[1];
most.value = 10;
most.dispatchEvent(new Event("input", {bubbles: true}));
found.short = visible(".sample");
document.title = JSON.stringify(found);
"""


@pytest.mark.skipif(not CHROMIUM, reason="Chromium is not installed")
def test_tables_are_sorted_and_arms_switched_off(tmp_path):
    study, shares = tmp_path / "study", {"b": 0.2, "c": 0.4, "a": 0.1}
    for name, share in shares.items():
        for seed in (1, 2):
            write_run(study, f"{name}-{seed}", share, seed)
    write_study(study, unchanged(dict.fromkeys(shares, 2)), "b")
    report.main([str(study), "--skip_model_analysis"])
    page = (study / "report.html").read_text()
    digest = base64.b64encode(hashlib.sha256(EXPLORE.encode()).digest()).decode()
    page = page.replace("script-src ", f"script-src 'sha256-{digest}' ").replace(
        "</body>", f"<script>{EXPLORE}</script></body>")
    (study / "explored.html").write_text(page)
    found = json.loads(title_of(study / "explored.html", tmp_path / "profile"))
    assert found["before"] == ["b", "c", "a"] and found["hidden"] == 0
    assert found["ascending"] == ["c", "b", "a"] and found["descending"] == ["a", "b", "c"]
    assert found["curves"][0] == found["curves"][1] > 4      # lines, bands and intervals
    assert found["switched"] == [found["curves"][0], 0, 0]
    assert found["samples"] == 6 and 0 < found["short"] < 6
