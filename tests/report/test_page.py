"""The report page: what it says, that no name becomes markup, and that it is the same for the same result."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import dovetail
from dovetail.backend import Outcome
from dovetail.encoding import DType
from dovetail.finding import Status, Verdict
from dovetail.report.page.histogram_chart import grid_of
from dovetail.report.page.markup import Markup, tag
from dovetail.report.page.page import render_page
from dovetail.report.page.run_view import DEPLOYED, Island, block_of, islands_of, layers_of, tensor_rows
from dovetail.report.page.write import write_page
from dovetail.report.result import Metrics, Result
from dovetail.storage import Reason
from tests.report.page_results import HOSTILE, digits_run, hostile, with_everything, with_tensors

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return dovetail.load_result(digits_run(tmp_path_factory.mktemp("page")) / "result.json")


class Page(HTMLParser):
    """The elements and texts of a page, and what is wrong with its structure."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self.texts: list[str] = []
        self.data: dict[str, Any] = {}
        self._open: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()
        assert not self._open, f"elements that are not closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in ("meta", "input", "br"):
            self._open.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        name, attributes = self._open[-1] if self._open else ("", {})
        if name == "script" and attributes.get("type") == "application/json":
            self.data = json.loads(data)
        elif name not in ("script", "style"):
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def ids(self) -> list[str]:
        return [value for _, name, value in self.attributes if name == "id"]


def test_a_real_run_has_every_section_and_its_figures(result: Result) -> None:
    page = Page(render_page(result))
    sections = ["verdicts", "metrics", "depth", "worst", "decisions", "findings", "cost", "tensors", "run", "origin"]
    assert [name for name in page.ids() if name in sections] == sections
    assert "No verdict fails; 5 of 5 pass." in page.text
    for verdict in result.verdicts.values():
        assert " ".join(verdict.reason.split()) in page.text
    spread = result.metrics.sqnr_db_per_sample.simulation_vs_float["logits"]
    assert f"{spread.mean_db:.1f} ± {spread.std_db:.1f} dB" in page.text
    assert result.metrics.accuracy is not None
    assert f"{result.metrics.accuracy.figures['float']['top1']:.4f}" in page.text
    assert 'onnxruntime.InferenceSession("model.onnx", session_options)' in page.text
    worst = min((tensor for tensor in result.metrics.tensors), key=lambda tensor: tensor.sqnr_db or 0)
    assert f"lowest at {worst.original_name}" in page.text
    assert len(page.data["rows"]) == len(result.plan)
    assert result.metrics.ranges
    for recorded in result.metrics.ranges:
        assert f"values {recorded.low:.4g} to {recorded.high:.4g} on 4 samples" in page.text


def test_what_failed_and_what_was_not_checked_is_at_the_top(result: Result) -> None:
    text = Page(render_page(with_everything(result))).text
    assert "1 of 6 verdicts fails: accuracy. Not checked, which is not a pass: device." in text
    assert "1 finding of severity error prevents deployment." in text
    assert text.index("Not checked") < text.index("Accuracy and SQNR", text.index("Verdicts") + 200)
    assert "estimate of other the compiler crashed" in text
    nothing = replace(result, metrics=Metrics(), plan=(), read_back=(), operators=(), artifacts=(), calibration=None)
    unreached = {name: Verdict(Status.NOT_CHECKED, "the run stopped") for name in result.verdicts}
    text = Page(render_page(replace(nothing, verdicts=unreached))).text
    assert "Nothing was checked." in text
    assert "Nothing ships, because nothing was compiled." in text
    assert "the target did not run on this machine" in text


def test_findings_decisions_and_latency_are_shown_with_their_reasons(result: Result) -> None:
    page = Page(render_page(with_everything(result)))
    assert "Fix: use --precision auto" in page.text
    assert "How to fix it" in page.text
    assert "the line joins what no other alternative beats" in page.text
    assert "w8a8 + 2 in fp32 (taken)" in page.text
    assert "75 us" in page.text
    assert "100 us (fitted is 0.75x)" in page.text
    for word in ("fp16", "naive", "fitted"):
        assert word in page.text


def test_a_result_without_quantized_tensors_says_why_charts_are_missing(result: Result) -> None:
    """As of a target that quantizes on edges only: there is a precision map, but no SQNR and no histogram."""
    page = Page(render_page(replace(result, metrics=replace(result.metrics, tensors=(), ranges=()))))
    assert "No SQNR per operator was measured" in page.text
    assert "Precision of every operator, from the input" in page.text
    assert "no tensor is quantized where it is produced" in page.text


def test_every_outcome_has_words(result: Result) -> None:
    for outcome in Outcome:
        rows = tensor_rows(replace(result, read_back=tuple(replace(row, outcome=outcome) for row in result.read_back)))
        assert rows[0].deployed in DEPLOYED
    assert {row.deployed for row in rows} == {"not found", "not read back"}


def test_differences_between_plan_and_compiled_model_come_first(result: Result) -> None:
    rows = tensor_rows(with_everything(result))
    assert (rows[0].deployed, rows[0].found) == ("changed", "planned uint8, found float32")
    page = Page(render_page(with_everything(result)))
    first = [page.data["texts"][index] for index in page.data["rows"][0]]
    assert first[0] == rows[0].name
    assert first[3:5] == ["changed", "planned uint8, found float32"]
    found = Counter(row.deployed for row in tensor_rows(result))
    assert found["as planned"] == len(result.read_back), "every row that was read back is beside its plan"


def test_no_text_of_a_result_becomes_markup(result: Result) -> None:
    """Every text, key and edge of the result is hostile; the page has the same elements as with the original names."""
    rich = with_everything(result)
    bad = hostile(rich)
    pages = [Page(render_page(each)) for each in (rich, bad)]
    assert pages[1].tags["img"] == 0
    assert pages[1].tags["script"] == 2
    assert [name for _, name, _ in pages[1].attributes if name.startswith("on")] == []
    assert HOSTILE in pages[1].text, "the name itself is shown"
    assert any(HOSTILE in text for text in pages[1].data["texts"])
    both = Page(render_page(bad, replace(bad, run="other")))
    assert (both.tags["img"], both.tags["script"]) == (0, 2)


def test_control_characters_are_shown_as_codes(result: Result) -> None:
    text = render_page(replace(result, model="a\x1b[31m\u202eb.onnx"))
    assert "a\\x1b[31m\\u202eb.onnx" in text
    assert "\x1b" not in text


def test_the_same_result_gives_the_same_bytes_and_nothing_is_loaded(result: Result) -> None:
    rich = with_everything(result)
    text = render_page(rich)
    assert text == render_page(rich)
    page = Page(text)
    loaded = [row for row in page.attributes if row[1] in ("src", "data", "srcset", "action")]
    assert loaded == []
    assert all(value.startswith("#") for _, name, value in page.attributes if name == "href")
    assert "url(" not in text
    assert "@import" not in text
    assert "default-src 'none'" in text


def test_the_page_can_be_read_aloud(result: Result) -> None:
    """Landmarks, names of controls, headers of tables, and titles of charts."""
    text = render_page(with_everything(result), replace(result, run="other"))
    page = Page(text)
    for landmark in ("header", "nav", "main", "footer"):
        assert page.tags[landmark] == 1
    assert page.tags["h1"] == 1
    ids = page.ids()
    assert len(ids) == len(set(ids)), [name for name, count in Counter(ids).items() if count > 1]
    references = [v for _, n, v in page.attributes if n == "aria-labelledby"]
    assert references
    assert {name for reference in references for name in reference.split()} <= set(ids)
    assert page.tags["table"] == page.tags["caption"] == page.tags["thead"]
    assert len(re.findall(r"<label>[^<]+<(?:input|select)", text)) == page.tags["input"] + page.tags["select"]
    roles = [value for tag_, name, value in page.attributes if (tag_, name) == ("svg", "role")]
    assert len(roles) == page.tags["svg"] == page.tags["desc"] == page.tags["figcaption"]
    assert 'lang="en"' in text


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_result_of_an_earlier_schema_is_shown(version: int, tmp_path: Path) -> None:
    source = HERE / f"result_v{version}.json"
    path = write_page(source, output=tmp_path / "page.html")
    page = Page(path.read_text())
    raw = json.loads(source.read_text())
    assert raw["schema_version"] == version
    assert raw["model"] in page.text
    assert len(page.data["rows"]) == len(raw["plan"])
    assert "of an older schema" in page.text
    assert "Islands and boundaries are not known" in page.text
    assert "No histogram is recorded in this result: it is of an older schema." in page.text


def test_two_runs_are_compared(result: Result) -> None:
    rows = tuple(
        replace(row, dtype=DType.F32, scale=None, zero_point=None) if row.tensor == "images" else row
        for row in result.plan
    )
    sqnr = replace(result.metrics.sqnr_db, target_vs_float={"logits": 50.0})
    other = replace(
        result,
        run="wider",
        plan=rows,
        precision="w8a16",
        options={**result.options, "range": "minmax"},
        metrics=replace(result.metrics, sqnr_db=sqnr),
    )
    page = Page(render_page(result, other))
    target = result.metrics.sqnr_db.target_vs_float
    assert target is not None
    assert f"{50.0 - (target['logits'] or 0):+.1f}" in page.text
    assert "Plans: 1 rows have another dtype" in page.text
    assert "minmax" in page.text
    assert page.data["headers"][-2:] == ["planned in wider", "SQNR dB in wider"]
    assert "different models" not in page.text
    assert "different models" in Page(render_page(result, replace(other, model_sha256="x"))).text
    assert "run (A)" in Page(render_page(result, replace(other, run="run"))).text


def test_a_target_is_never_compared_with_a_simulation(result: Result) -> None:
    simulation = result.metrics.sqnr_db.simulation_vs_float["logits"]
    assert simulation is not None
    only_simulated = replace(result.metrics.sqnr_db, target_vs_float=None, simulation_vs_float={"logits": 40.0})
    other = replace(result, run="other", metrics=replace(result.metrics, sqnr_db=only_simulated))
    text = Page(render_page(result, other)).text
    assert "SQNR of logits, dB (simulation)" in text
    assert f"{40.0 - simulation:+.1f}" in text
    only_target = replace(only_simulated, target_vs_float={"logits": 70.0}, simulation_vs_float={})
    text = Page(render_page(other, replace(result, run="c", metrics=replace(result.metrics, sqnr_db=only_target)))).text
    assert "40.0 (simulation)" in text
    assert "70.0 (target)" in text
    assert "+30.0" not in text


def test_tensors_with_one_original_name_are_compared_apart(result: Result) -> None:
    first = next(row for row in result.plan if row.edge is None)
    twin = replace(first, tensor=f"{first.tensor}/flat")
    one = replace(result, plan=(*result.plan, twin))
    two = replace(result, run="two", plan=(*result.plan, replace(twin, dtype=DType.F32, scale=None, zero_point=None)))
    page = Page(render_page(one, two))
    assert "Plans: 1 rows have another dtype" in page.text
    texts, rows = page.data["texts"], page.data["rows"]
    planned = [
        texts[row[-2]] for row in rows if texts[row[0]] == first.original_name and texts[row[1]] == "as produced"
    ]
    assert sorted(planned) == sorted([str(first.dtype), "float32"])


def test_a_run_that_compiled_nothing_does_not_speak_of_the_compiler(result: Result) -> None:
    clean = replace(result, findings=())
    assert "this plan or this compiler run" in Page(render_page(clean)).text
    skipped = {**result.verdicts, "compiled": Verdict(Status.NOT_CHECKED, "not installed")}
    text = Page(render_page(replace(clean, verdicts=skipped))).text
    assert "this graph or this plan; nothing was compiled" in text


def test_islands_and_boundaries_follow_the_plan(result: Result) -> None:
    assert islands_of(layers_of(result)) == []
    inside = {"blocks.1.mlp.fc1/Add_out/Gemm", "blocks.1.mlp.fc1/Add_out", "blocks.1.mlp.act/Mul_2_out"}
    assert inside <= {row.tensor for row in result.plan}
    plan = tuple(
        replace(row, dtype=DType.F32, scale=None, why=Reason.PINNED, detail="--keep")
        if row.tensor in inside and row.edge is None
        else row
        for row in result.plan
    )
    layers = layers_of(replace(result, plan=plan))
    numbers = [n for n, operator in enumerate(result.operators) if set(operator.inputs) & inside]
    assert islands_of(layers) == [Island(numbers[0], numbers[-1], DType.F32)]
    assert [n for n, layer in enumerate(layers) if layer.is_boundary] == [numbers[0], numbers[-1] + 1]
    page = Page(render_page(replace(result, plan=plan)))
    assert "Islands: neighboring operators with a wider precision than most (1; 2 boundaries" in page.text


def test_the_grid_of_a_tensor_is_what_its_integers_represent(result: Result) -> None:
    row = next(row for row in result.plan if row.tensor == "images")
    assert grid_of(replace(row, dtype=DType.U8, scale=0.5, zero_point=128)) == (-64.0, 63.5, 0.5)
    assert grid_of(replace(row, dtype=DType.S8, scale=0.5, zero_point=0)) == (-64.0, 63.5, 0.5)
    assert grid_of(replace(row, dtype=DType.F32, scale=None, zero_point=None)) is None
    assert grid_of(replace(row, scale=[0.5, 1.0], zero_point=[0, 0])) is None


@pytest.mark.parametrize(
    ("name", "block"),
    [
        ("blocks.3.attn/MatMul_out", "blocks.3"),
        ("/model/layers.10/self_attn/Add", "model/layers.10"),
        ("layer1.0.conv1/Conv_output", "layer1.0"),
        ("encoder.norm1/Add_out", "encoder"),
        ("Reshape_2_out", ""),
        ("logits", ""),
        ("", ""),
    ],
)
def test_the_block_of_a_name(name: str, block: str) -> None:
    assert block_of(name) == block


def test_five_thousand_tensors_stay_below_two_megabytes(result: Result) -> None:
    text = render_page(with_tensors(result, 5000))
    assert len(text.encode()) < 2_000_000
    assert len(Page(text).data["rows"]) == 5000


def test_markup_is_not_escaped_twice_and_text_is_escaped_once() -> None:
    assert tag("p", "a<b", Markup("<b>c</b>"), ["&", None], class_='x"y') == (
        '<p class="x&quot;y">a&lt;b<b>c</b>&amp;</p>'
    )
