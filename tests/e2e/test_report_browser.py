"""Reports in a real browser: headless Chromium opens them from disk, clicks, types, sorts and looks at pixels."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import save_file

from salrun.report import write_joint_report, write_report
from salrun.results.run import Run
from tests.fake_run import METHODS, make_run

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed (pip install selenium)")
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import Select, WebDriverWait  # noqa: E402

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="no browser: install Debian's packages chromium and chromium-driver"
)
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --hide-scrollbars"
)
HOSTILE = '<img src=x onerror="window.hacked=1"> </script><script>window.hacked=1</script> \' "'


class Browser:
    """A page with what the tests ask of it."""

    def __init__(self, profile: Path) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM
        for flag in (*FLAGS.split(), f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=DRIVER))
        self.size(1200)

    def size(self, width: int, dark: bool = False, media: str = "") -> None:
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        wishes = {"prefers-color-scheme": "dark" if dark else "light", "prefers-reduced-motion": "reduce"}
        features = [{"name": name, "value": value} for name, value in wishes.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})

    def open(self, page: Path) -> None:
        self.driver.get_log("browser"), self.driver.get_log("performance")
        self.driver.get(page.absolute().as_uri())

    def gallery(self, page: Path) -> None:
        self.open(page)
        self.js("document.querySelector('[data-gallery]').scrollIntoView({behavior: 'instant'})")
        self.until("return document.querySelector('.count').textContent !== ''")
        self.drawn()

    def js(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def until(self, script: str, seconds: float = 60) -> None:
        WebDriverWait(self.driver, seconds, poll_frequency=0.02).until(lambda d: d.execute_script(script))

    def drawn(self) -> None:
        """Wait until every canvas on the screen has pixels."""
        self.until("""
            const seen = [...document.querySelectorAll('.tile canvas')].filter((c) => {
              const r = c.getBoundingClientRect(); return r.bottom > 0 && r.top < innerHeight; });
            return seen.length > 0 && seen.every((c) => c.width > 0);""")

    def all(self, selector: str) -> list[Any]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str) -> Any:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def choose(self, name: str, value: str) -> None:
        Select(self.one(f".controls [name={name}]")).select_by_value(value)

    def look(self, mode: str) -> None:
        self.js(f"document.querySelector('[name=mode][value={mode}]').click()")
        time.sleep(0.2)

    def processor_seconds(self) -> float:
        """Used by the browser and its children so far: unlike a clock, it does not care what else the machine does."""
        parent, used = {}, {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                pid, fields = int(stat.parent.name), stat.read_text().rpartition(")")[2].split()
                parent[pid], used[pid] = int(fields[1]), int(fields[11]) + int(fields[12])
        family = {self.driver.service.process.pid}
        while more := {pid for pid in parent if parent[pid] in family} - family:
            family |= more
        return sum(used.get(pid, 0) for pid in family) / os.sysconf("SC_CLK_TCK")

    def count(self) -> str:
        return self.one(".count").text

    def pixel(self, tile: str, row: float, col: float) -> list[int]:
        """RGB of a tile's canvas at a relative position."""
        script = """
            const c = document.querySelector(arguments[0] + ' canvas');
            const [x, y] = [arguments[2] * c.width, arguments[1] * c.height];
            return [...c.getContext('2d').getImageData(x, y, 1, 1).data].slice(0, 3)"""
        return self.js(script, tile, row, col)

    def quiet(self) -> None:
        """Nothing was said on the console and nothing was asked of a network."""
        assert self.driver.get_log("browser") == []
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        urls = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
        assert urls, "the page itself should have been seen"
        assert [u for u in urls if not u.startswith(("file:", "data:"))] == []
        assert len([u for u in urls if u.startswith("file:")]) == 1


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.driver.quit()


@pytest.fixture(autouse=True)
def wide(browser: Browser) -> None:
    browser.size(1200)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 images, 6 methods; of the gradient's first map every pixel is known."""
    folder = make_run(tmp_path_factory.mktemp("run"), n_images=40, methods=[*METHODS[:4], "grad_cam", "rise"], groups=4)
    plane = np.zeros((40, 64, 64), np.float16)
    plane[:, :, :32], plane[:, :, 32:] = 0.5, -0.5
    plane[1] *= 4  # the largest of the method, for the shared scale
    plane[2, :, :32] = np.nan
    save_file({"plane": plane, "scale": np.ones(40, np.float32)}, folder / "maps" / "gradient.safetensors")
    return folder


@pytest.fixture(scope="module")
def report(run: Path) -> Path:
    return write_report(run)


@pytest.fixture(scope="module")
def scores(run: Path) -> pd.DataFrame:
    return pd.read_parquet(run / "tables" / "scores.parquet")


GRADIENT = "button.tile[data-method='0']"


def test_opens_clean_and_alone(browser: Browser, report: Path) -> None:
    browser.gallery(report)
    assert browser.one("h1").text == "smerf_complex_cr2"
    browser.look("both")
    assert len(browser.all("img")) == 2 + 2 * (1 + 3)  # a figure, small and large, and two images with three maps
    browser.js("document.querySelector('figure.plot').scrollIntoView({behavior: 'instant'})")
    browser.until("return [...document.querySelectorAll('img')].every((i) => i.complete && i.naturalWidth > 0)")
    browser.quiet()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1200, 400])
def test_the_first_screen_answers(browser: Browser, report: Path, width: int, dark: bool) -> None:
    """Without scrolling: the sentence and the table; at 1200 pixels also what is said of the paper and six maps."""
    browser.size(width, dark)
    browser.open(report)
    wanted = [".lead", ".comparison tbody tr:first-child"]
    if width == 1200:
        wanted += [".comparison tbody.blind, .comparison tbody:last-child", ".headline", ".six", "figure.plot img"]
    bottoms = browser.js("return arguments[0].map((s) => document.querySelector(s).getBoundingClientRect())", wanted)
    assert all(0 <= box["top"] < box["bottom"] <= 900 for box in bottoms)
    assert all(0 <= box["left"] < width for box in bottoms)
    assert browser.js("return document.documentElement.scrollWidth") <= width
    sizes = browser.js("return [...document.querySelectorAll('.six img')].map((i) => [i.naturalWidth, i.offsetWidth])")
    assert len(sizes) == 8
    assert all(natural == 64 and 50 < shown < 130 for natural, shown in sizes)


def test_the_gallery_begins_with_a_few_images(browser: Browser, report: Path) -> None:
    browser.gallery(report)

    def seen() -> int:
        return browser.js("return [...document.querySelectorAll('.card')].filter((c) => c.offsetHeight).length")

    assert seen() == 3
    assert browser.one("[data-more]").text == "Show all 40 images"
    browser.one("[data-more]").click()
    assert seen() == 40
    assert not browser.one("[data-more]").is_displayed()
    browser.quiet()


def test_summary_table_filters_and_sorts(browser: Browser, report: Path, run: Path) -> None:
    browser.open(report)
    status = browser.one("form.filters [role=status]")
    total = len(pd.read_parquet(run / "tables" / "summary.parquet"))
    assert status.text == f"6 of {total} rows"  # one metric over all groups to begin with

    def means() -> list[str]:
        return browser.js("return [...document.querySelectorAll('.summary tbody tr:not([hidden]) td.num:not(.ci)')]"
                          ".filter((_, i) => i % 4 === 0).map((c) => c.textContent)")  # fmt: skip

    heading = next(b for b in browser.all(".summary thead th button") if b.text.startswith("mean"))
    heading.send_keys(Keys.ENTER)
    assert heading.find_element(By.XPATH, "..").get_attribute("aria-sort") == "ascending"
    assert means() == sorted(means(), key=float)
    heading.click()
    assert means() == sorted(means(), key=float, reverse=True)
    assert len(set(means())) == 6
    for select in browser.all("form.filters select"):
        Select(select).select_by_value("")
    assert status.text == f"{total} of {total} rows"


def test_gallery_filters(browser: Browser, report: Path, scores: pd.DataFrame) -> None:
    browser.gallery(report)
    assert browser.count() == "40 images, 240 maps."
    browser.choose("group", "2")
    assert browser.count() == "10 images, 60 maps."
    browser.choose("correct", "no")
    images = scores[["image_id", "group", "label", "prediction"]].drop_duplicates()
    wrong = images[(images["label"] != images["prediction"])]
    expected = list(wrong.loc[wrong["group"] == "2", "image_id"])
    assert [h.text for h in browser.all(".card h4")] == expected
    browser.choose("group", "")
    assert [h.text for h in browser.all(".card h4")] == list(wrong["image_id"])
    browser.one(".methods summary").click()
    browser.one("[data-check=none]").click()
    assert browser.count() == "No method is chosen."
    browser.one(".methods [name=method][value='4']").click()
    assert browser.one("[data-methods]").text == "1 of 6"
    browser.drawn()
    assert {t.text.split("\n")[0] for t in browser.all("button.tile")} == {"grad_cam"}
    browser.quiet()


def test_worst_first(browser: Browser, report: Path, scores: pd.DataFrame) -> None:
    browser.gallery(report)
    metrics = [o.text for o in browser.all("[name=metric] option")]
    browser.choose("metric", str(metrics.index("pafl")))
    options = [o.text for o in browser.all("[name=order] option")]
    assert options == ["as in the data", "worst first (lowest)", "best first (highest)"]
    browser.choose("order", "up")
    maps = scores
    pafl = maps[maps["metric"] == "pafl"]
    by_image = pafl.groupby("image_id")["value"].mean().sort_values(kind="stable")
    assert [h.text for h in browser.all(".card h4")] == list(by_image.index)
    assert browser.count() == "40 images, 240 maps; pafl: worst first (lowest)."

    browser.choose("metric", str(metrics.index("safl")))
    options = [o.text for o in browser.all("[name=order] option")]
    assert options == ["as in the data", "best first (lowest)", "worst first (highest)"]
    browser.choose("arrange", "map")
    browser.choose("order", "down")
    browser.drawn()
    safl = maps[maps["metric"] == "safl"].sort_values("value", ascending=False, na_position="last")
    first = browser.one("button.tile").text.split("\n")
    assert first[:2] == [safl["method"].iloc[0], safl["image_id"].iloc[0]]
    assert first[2] == f"safl {safl['value'].iloc[0]:.3f}"
    browser.quiet()


def test_scores_stand_under_the_maps(browser: Browser, report: Path, scores: pd.DataFrame) -> None:
    browser.gallery(report)
    browser.one("[name=every]").click()
    browser.drawn()
    lines = browser.one(GRADIENT).text.split("\n")
    one = scores[(scores["image_id"] == "test-00000") & (scores["method"] == "gradient")]
    assert lines == ["gradient", "test-00000", *(f"{r.metric} {r.value:.3f}" for r in one.itertuples())]
    images = Run(report.parent).images.set_index("image_id")
    confidence = images.loc["test-00000", "confidence"]
    assert f"confidence {confidence:.3f}" in browser.one(".card header").text
    assert browser.js(
        "return document.querySelectorAll('.card')[3].querySelector('[data-method=\"4\"]').textContent"
    ).endswith("n/a degenerate map")


def test_colours_scale_overlay_and_outlines(browser: Browser, report: Path) -> None:
    browser.gallery(report)
    browser.one("[name=outlines]").click()
    browser.look("map")
    tile = f"{GRADIENT}[data-image='0']"
    red, blue = browser.pixel(tile, 0.5, 0.25), browser.pixel(tile, 0.5, 0.75)
    assert red[0] > 100 > max(red[1:])
    assert blue[2] > 100 > max(blue[:2])
    browser.choose("scale", "shared")  # a quarter of the method's largest
    time.sleep(0.3)
    pale = browser.pixel(tile, 0.5, 0.25)
    assert pale[0] > 200
    assert min(pale[1:]) > 120
    assert browser.pixel(f"{GRADIENT}[data-image='1']", 0.5, 0.25) == red
    browser.js("const r = document.querySelector('[name=contrast]'); r.value = 4; r.dispatchEvent(new Event('input'))")
    time.sleep(0.3)
    assert np.abs(np.subtract(browser.pixel(tile, 0.5, 0.25), red)).max() <= 3
    browser.choose("scale", "map")
    browser.choose("colours", "unsigned")
    time.sleep(0.3)
    assert browser.pixel(tile, 0.5, 0.25) == browser.pixel(tile, 0.5, 0.75)
    browser.choose("colours", "signed")
    browser.look("both")
    time.sleep(0.3)
    width, height = browser.js(f'const c = document.querySelector("{tile} canvas"); return [c.width, c.height]')
    assert abs(width - 2 * height) <= 1
    assert browser.pixel(tile, 0.5, 0.625) == red  # the map is the right one
    nan = {tuple(browser.pixel(f"{GRADIENT}[data-image='2']", y, 0.55)) for y in (0.3, 0.33, 0.36, 0.4)}
    assert nan <= {(128, 128, 128), (190, 190, 190)}
    before = browser.js(f'return document.querySelector("{tile} canvas").toDataURL()')
    browser.one("[name=outlines]").click()
    time.sleep(0.3)
    assert browser.js(f'return document.querySelector("{tile} canvas").toDataURL()') != before


def test_outline_is_where_the_object_is(browser: Browser, report: Path, run: Path) -> None:
    browser.gallery(report)
    browser.look("map")
    row0, col0, row1, col1 = json.loads((run / "maps" / "index.json").read_text())["masks"]["text"][0]
    green = browser.js(
        """
        const c = document.querySelector(arguments[0]);
        const {data} = c.getContext('2d').getImageData(0, 0, c.width, c.height);
        const at = [];
        for (let p = 0; p < data.length / 4; p++) {
          const [r, g, b] = data.slice(4 * p, 4 * p + 3);
          if (g > 170 && r < 90 && b < 160) at.push([Math.floor(p / c.width), p % c.width]);
        }
        return [Math.min(...at.map((a) => a[0])) / c.height, Math.min(...at.map((a) => a[1])) / c.width,
                Math.max(...at.map((a) => a[0])) / c.height, Math.max(...at.map((a) => a[1])) / c.width]""",
        f"{GRADIENT}[data-image='0'] canvas",
    )
    np.testing.assert_allclose(np.multiply(green, 64), [row0, col0, row1, col1], atol=1.5)


def test_keyboard(browser: Browser, report: Path) -> None:
    browser.gallery(report)
    keys = browser.driver.switch_to

    def at() -> tuple[str, str]:
        return tuple(browser.js("return [document.activeElement.dataset.image, document.activeElement.dataset.method]"))

    assert len(browser.all("button.tile[tabindex='0']")) == 1  # one stop in the tab order
    browser.js("document.querySelector(\"button.tile[tabindex='0']\").focus()")
    assert at() == ("0", "0")
    for key, expected in [(Keys.ARROW_RIGHT, ("0", "1")), (Keys.ARROW_DOWN, ("1", "1")), (Keys.ARROW_LEFT, ("1", "0")),
                          (Keys.ARROW_LEFT, ("0", "5")), (Keys.END, ("39", "5")), (Keys.ARROW_RIGHT, ("39", "5")),
                          (Keys.HOME, ("0", "0")), (Keys.ARROW_UP, ("0", "0"))]:  # fmt: skip
        keys.active_element.send_keys(key)
        assert at() == expected
    keys.active_element.send_keys("b")
    assert browser.one("[data-gallery]").get_attribute("data-mode") == "both"
    keys.active_element.send_keys(Keys.ENTER)
    dialog = browser.one("dialog")
    assert dialog.is_displayed()
    assert browser.one("dialog h4").text == "gradient, image test-00000"
    browser.until("return [...document.querySelectorAll('dialog canvas')].every((c) => c.width > 100)")
    assert "confidence" in browser.one("dialog dl").text
    keys.active_element.send_keys(Keys.ARROW_RIGHT)
    assert browser.one("dialog h4").text == "sensitivity, image test-00000"
    keys.active_element.send_keys(Keys.ESCAPE)
    browser.until("return !document.querySelector('dialog').open")
    assert at() == ("0", "1")
    browser.quiet()


def test_everything_has_a_name_for_a_screen_reader(browser: Browser, report: Path) -> None:
    browser.gallery(report)
    browser.one(".methods summary").click()
    controls = browser.all("select, input, nav a, th button, .methods button, button.tile[data-image='0']")
    assert len(controls) > 30
    assert [c.get_attribute("outerHTML") for c in controls if c.is_displayed() and not c.accessible_name] == []
    assert browser.one(GRADIENT).accessible_name.startswith("gradient test-00000 deletion")
    assert browser.one("[name=contrast]").accessible_name == "Contrast"
    assert browser.one(".count").aria_role == "status"
    assert {s.aria_role for s in browser.all("section[aria-labelledby]")} == {"region"}
    assert [i.get_attribute("alt") for i in browser.all("img") if not i.get_attribute("alt")] == []
    levels = browser.js("return [...document.querySelectorAll('h1, h2, h3')].map((h) => Number(h.tagName[1]))")
    assert levels[0] == 1
    assert all(b - a <= 1 for a, b in itertools.pairwise(levels))


def luminance(colour: str) -> float:
    rgb = [int(v) / 255 for v in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1200, 400])
def test_fits_the_width_and_can_be_read(browser: Browser, report: Path, width: int, dark: bool) -> None:
    browser.size(width, dark)
    browser.gallery(report)
    for mode in ("both", "overlay"):
        browser.look(mode)
        assert browser.js("return document.documentElement.scrollWidth") <= width
    assert (luminance(browser.js("return getComputedStyle(document.body).backgroundColor")) < 0.1) == dark
    contrasts = browser.js("""
        return ['body', '.note', '.notes li', '.comparison td', '.blind td', '.six small',
                '.verdict', '.state', '.why', '.tile .name', '.tile .score', '.flagged', '.count', 'a']
          .flatMap((s) => [...document.querySelectorAll(s)].slice(0, 5).map((e) => {
            let back = e;
            while (getComputedStyle(back).backgroundColor === 'rgba(0, 0, 0, 0)') back = back.parentElement;
            return [s, getComputedStyle(e).color, getComputedStyle(back).backgroundColor];
          }))""")
    assert len(contrasts) > 20
    for name, ink, paper in contrasts:
        light, low = sorted((luminance(ink), luminance(paper)), reverse=True)
        assert (light + 0.05) / (low + 0.05) >= 4.5, (name, ink, paper)


def test_prints(browser: Browser, report: Path) -> None:
    browser.gallery(report)
    pdf = base64.b64decode(browser.driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"])
    assert pdf.startswith(b"%PDF")
    assert len(pdf) > 20_000
    browser.size(720, dark=True, media="print")  # A4 between its margins
    assert browser.js("return document.documentElement.scrollWidth") <= 720
    assert not browser.one("nav").is_displayed()
    assert not browser.one(".controls").is_displayed()
    assert browser.one(".print-only").is_displayed()
    assert luminance(browser.js("return getComputedStyle(document.body).color")) < 0.1  # dark ink, also in dark mode
    assert browser.js("return getComputedStyle(document.querySelector('.scroll')).maxHeight") == "none"


def test_two_thousand_maps_stay_responsive(browser: Browser, tmp_path: Path) -> None:
    page = write_report(make_run(tmp_path / "run", n_images=112, methods=METHODS[:18]))
    assert page.stat().st_size < 15_000_000
    before = browser.processor_seconds()
    browser.gallery(page)
    assert browser.processor_seconds() - before < 10
    assert browser.count() == "112 images, 2,016 maps."
    assert len(browser.all(".card")) == 112
    assert len(browser.all(".card.filled")) < 12

    change = "dispatchEvent(new Event('change', {bubbles: true}))"
    actions = {
        "both": "form.querySelector('[value=both]').click()",
        "scale": f"form.elements.scale.value = 'shared'; form.elements.scale.{change}",
        "colours": f"form.elements.colours.value = 'unsigned'; form.elements.colours.{change}",
        "single maps": f"form.elements.arrange.value = 'map'; form.elements.arrange.{change}",
        "order": f"form.elements.order.value = 'up'; form.elements.order.{change}",
        "end": "document.querySelector('.card:last-child').scrollIntoView({behavior: 'instant'})",
    }
    used = {}
    for name, action in actions.items():
        before = browser.processor_seconds()
        browser.driver.execute_async_script(
            f"""
            const done = arguments[0], form = document.querySelector('form.controls');
            {action};
            requestAnimationFrame(() => setTimeout(done));"""
        )
        browser.drawn()
        used[name] = browser.processor_seconds() - before
    assert max(used.values()) < 3, used
    alive = browser.js("return [...document.querySelectorAll('.cards canvas')].filter((c) => c.width).length")
    assert 0 < alive < 400  # only what is near the screen holds pixels
    browser.quiet()


def test_hostile_names_stay_text(browser: Browser, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", n_images=12, methods=["gradient"], side=8, labels={"gradient": HOSTILE},
                      experiment=HOSTILE, deviations=[HOSTILE], command=HOSTILE)  # fmt: skip
    index = json.loads((folder / "maps" / "index.json").read_text())
    index["image_id"] = [f"{HOSTILE}{i}" for i in range(12)]
    index["group"] = [HOSTILE] * 12
    (folder / "maps" / "index.json").write_text(json.dumps(index))
    browser.gallery(write_report(folder))
    assert browser.one("h1").text == " ".join(HOSTILE.split())
    assert browser.one(".card h4").text == f"{HOSTILE}0"
    browser.one("button.tile").click()
    assert HOSTILE in browser.js("return document.querySelector('dialog h4').textContent")
    assert browser.js("return window.hacked") is None
    assert browser.js("return document.querySelectorAll('img[src=x]').length") == 0
    browser.one("dialog button[value=close]").click()
    Select(browser.one("[name=group]")).select_by_index(1)
    assert browser.count() == "12 images, 12 maps."
    browser.quiet()


def test_a_run_without_maps_scores_or_claims_is_still_clean(browser: Browser, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", n_images=12, methods=["gradient"], side=8)
    (folder / "claims.csv").unlink()
    (folder / "tables" / "scores.parquet").unlink()
    browser.gallery(write_report(folder))
    assert browser.one(GRADIENT).text == "gradient\ntest-00000"
    browser.choose("arrange", "map")
    browser.drawn()
    browser.quiet()
    shutil.rmtree(folder / "maps")
    browser.open(write_report(folder))
    assert "This run kept no maps" in browser.one("main").text
    browser.quiet()


def test_joint_report_opens_a_gallery_per_run(browser: Browser, tmp_path: Path) -> None:
    small = {"n_images": 12, "methods": ["gradient", "rise"], "side": 16}
    runs = [make_run(tmp_path / name, experiment=name, paper=paper, **small)
            for name, paper in (("first", "smerf"), ("second", "smerf"), ("third", "yona"))]  # fmt: skip
    browser.open(write_joint_report(runs, tmp_path / "report.html"))
    assert [h.text for h in browser.all("h2.paper")] == ["smerf", "yona"]
    assert browser.js("return document.querySelectorAll('.card').length") == 0  # nothing is unpacked unasked
    assert browser.all(".matrix tbody th")[-1].text == "mean"
    for width in (400, 1200):
        browser.size(width)
        assert browser.js("return document.documentElement.scrollWidth") <= width
    second = browser.all("details.one-gallery")[1]
    browser.js("arguments[0].open = true; arguments[0].scrollIntoView({behavior: 'instant'})", second)
    browser.until("return document.querySelectorAll('.card').length === 12")
    browser.drawn()
    assert browser.js("return document.documentElement.scrollWidth") <= 1200
    browser.quiet()
