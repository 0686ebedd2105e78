"""The published page in a real browser: graphs, selectors, and a planted step."""

from __future__ import annotations

import re
from pathlib import Path

import page
import pytest
from asv_site import make_repository, publish, served, shown, write_results

STEP, COMMITS = 12, 24
SLOWER = ("pocl", "gemv-1024x3072-f16-f16", "auto")
GRAPH = "gemv.Gemv.track_ratio"


def planted(name: str, number: int, row: tuple[str, ...]) -> float:
    """A ratio that becomes 8 % worse at one commit for one arm; NaN where no device is."""
    device, case, arm = (text.strip("'") for text in row)
    if device != "pocl" or "5120" in case:
        return float("nan")
    wobble = 0.002 * ((number * 7 + len(arm)) % 5 - 2)
    step = 0.08 if (device, case, arm) == SLOWER and number >= STEP else 0.0
    return {"auto": 0.1, "pack3": 0.6}[arm] * (1 + step + wobble)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    folder = tmp_path_factory.mktemp("site") / "repo"
    hashes = make_repository(folder, COMMITS)
    write_results(folder, hashes, "gemv.Gemv", planted)
    return publish(folder), hashes


def test_the_graph_draws_and_its_selectors_are_there(
    site: tuple[Path, list[str]], tmp_path: Path
) -> None:
    from matplotlib.image import imread

    picture = tmp_path / "page.png"
    with served(site[0]) as address:
        text = shown(f"{address}/#{GRAPH}", tmp_path / "a")
        shown(f"{address}/#{GRAPH}", tmp_path / "b", picture)
    assert 'class="flot-base"' in text
    for name, values in (("device", {"pocl", "cuda0"}), ("arm", {"auto", "pack3"})):
        (panel,) = re.findall(rf'panel-heading">{name}</div>(.*?)panel-heading', text, re.DOTALL)
        assert values <= set(re.findall(r'role="button"[^>]*>([^<]+)</a>', panel))
    # Right of the legend there is colour only in the lines.
    inside = imread(picture)[150:850, 700:1330, :3]
    assert (inside.max(axis=2) - inside.min(axis=2) > 0.15).sum() > 300


def test_the_planted_step_is_on_the_regressions_page_at_its_commit(
    site: tuple[Path, list[str]], tmp_path: Path
) -> None:
    html, hashes = site
    with served(html) as address:
        text = shown(f"{address}/#/regressions", tmp_path / "a")
    rows = [row for row in re.findall(r"<tr id.*?</tr>", text, re.DOTALL) if GRAPH in row]
    assert len(rows) == 1
    assert f"{GRAPH}{SLOWER}</a>" in rows[0]
    assert f">{hashes[STEP][:8]}</a>" in rows[0]
    assert "<td>1.08x</td>" in rows[0]


def test_a_page_keeps_the_check_sums_of_the_files_that_asv_names(
    site: tuple[Path, list[str]],
) -> None:
    text = (site[0] / "index.html").read_text()
    assert not re.search(r'(src|href)="https://[^"]*\.(js|css)"', text)
    assert re.search(r'src="vendor/jquery-3.3.1.min.js" integrity="sha256-', text)
    assert 'src="vendor/jquery.flot.min.js" onerror' in text  # npm has it as it was written


def test_a_page_that_needs_an_unknown_script_stays_as_it_is(tmp_path: Path) -> None:
    text = '<script src="https://example.org/new.js" integrity="sha256-x"></script>'
    (tmp_path / "index.html").write_text(text)
    with pytest.raises(page.PageError, match=r"new\.js"):
        page.make_local(tmp_path, tmp_path / "cache")
    assert (tmp_path / "index.html").read_text() == text
