"""Diagrams of docs/explanation/how-it-works.md, drawn as SVG: boxes, arrows and captions at given places."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape

__all__ = ["DIAGRAMS", "Drawing"]

_STYLE = """text{font:14px system-ui,sans-serif;fill:#1b2733}.small{font-size:12px;fill:#52606d}.title{font-weight:600}
.plain{fill:#fff;stroke:#9aa5b1}.kafka{fill:#fff4e0;stroke:#d9a441}.spark{fill:#e6f0fb;stroke:#5b8fc9}
.group{fill:#f5f7fa;stroke:#cbd2d9}.state{fill:#e7f6ec;stroke:#57a773}
.arrow{stroke:#3e4c59;stroke-width:1.6;fill:none;marker-end:url(#head)}.dashed{stroke-dasharray:5 4}"""
_HEAD = (
    '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    '<path d="M0,0 L8,4 L0,8 z" fill="#3e4c59"/></marker></defs>'
)


@dataclass
class Drawing:
    """An SVG picture of a fixed size, filled by `box`, `arrow` and `text`."""

    width: int
    height: int
    title: str
    parts: list[str] = field(default_factory=list)

    def box(self, x: int, y: int, width: int, height: int, lines: str = "", kind: str = "plain") -> None:
        """Draw a box; the first line of `lines` is its title, the others are captions."""
        self.parts.append(f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="6"/>')
        shown = lines.split("\n") if lines else []
        top = y + height / 2 - (len(shown) - 1) * 9 + 5
        for number, line in enumerate(shown):
            style = "title" if number == 0 and len(shown) > 1 else "small" if number else ""
            self._line(x + width / 2, top + 18 * number, line, style, "middle")

    def text(self, x: int, y: int, line: str, style: str = "small", anchor: str = "start") -> None:
        """Write one line of text; `style` is `title` or `small`."""
        self._line(x, y, line, style, anchor)

    def arrow(self, *points: tuple[int, int], dashed: bool = False) -> None:
        """Draw an arrow through `points`, with its head at the last one."""
        path = " L".join(f"{x},{y}" for x, y in points)
        self.parts.append(f'<path class="arrow{" dashed" if dashed else ""}" d="M{path}"/>')

    def svg(self) -> str:
        """Return the picture. Its background is white, so that it can be read on dark pages too."""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}" '
            f'height="{self.height}" role="img"><title>{escape(self.title)}</title><style>{_STYLE}</style>{_HEAD}'
            f'<rect width="{self.width}" height="{self.height}" rx="8" fill="#fff"/>{"".join(self.parts)}</svg>\n'
        )

    def _line(self, x: float, y: float, line: str, style: str, anchor: str) -> None:
        self.parts.append(f'<text class="{style}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(line)}</text>')


def _group() -> Drawing:
    drawing = Drawing(760, 400, "Two instances of one application share the tasks of a streams group")
    drawing.box(20, 20, 720, 130, kind="kafka")
    drawing.text(36, 44, "Kafka: Apache Kafka, or headrace broker", "title")
    drawing.box(40, 60, 300, 70, "topic flights\npartitions 0 · 1 · 2 · 3")
    drawing.box(400, 60, 320, 70, "group coordinator\nmembers, assignment, committed offsets")
    for x, name, tasks in ((20, "instance A", (0, 1)), (400, "instance B", (2, 3))):
        drawing.box(x, 240, 340, 140, kind="spark")
        drawing.text(x + 16, 264, f"{name}: one Spark application", "title")
        for number, task in enumerate(tasks):
            drawing.box(
                x + 20 + 155 * number, 284, 145, 78, f"task 0_{task}\npartition {task}\nstore {task}", kind="state"
            )
    drawing.arrow((150, 150), (150, 238))
    drawing.arrow((300, 150), (300, 195), (460, 195), (460, 238))
    drawing.text(60, 190, "records")
    drawing.arrow((540, 238), (540, 152), dashed=True)
    drawing.arrow((660, 152), (660, 238), dashed=True)
    drawing.text(548, 226, "heartbeat")
    drawing.text(668, 176, "tasks")
    return drawing


def _micro_batch() -> Drawing:
    drawing = Drawing(760, 330, "The stages of a micro-batch and its transaction")
    drawing.box(
        20, 20, 720, 62, "driver\nplans ranges [from, to) with the member epoch; after the job: adds offsets, commits"
    )
    drawing.box(20, 112, 720, 118, kind="spark")
    drawing.text(36, 136, "one Spark job, one slot for each core", "title")
    stages = (
        ("fetch\nArrow batches", "plain"),
        ("your columns\nSpark SQL", "plain"),
        ("aggregate\nArrow, LMDB store", "state"),
        ("produce\nresults, changelog", "plain"),
    )
    for number, (stage, kind) in enumerate(stages):
        drawing.box(36 + 178 * number, 152, 150, 62, stage, kind)
        if number:
            drawing.arrow((8 + 178 * number, 183), (34 + 178 * number, 183))
    drawing.box(20, 262, 200, 52, "Kafka: input topics", "kafka")
    drawing.box(260, 262, 480, 52, "Kafka: one transaction\nresults, repartition rows, changelog, offsets", "kafka")
    drawing.arrow((111, 260), (111, 216))
    drawing.arrow((645, 216), (645, 260))
    drawing.arrow((380, 84), (380, 110))
    drawing.arrow((750, 52), (755, 52), (755, 288), (742, 288), dashed=True)
    return drawing


def _processes() -> Drawing:
    drawing = Drawing(760, 350, "The processes of an instance")
    drawing.box(20, 20, 540, 310, kind="group")
    drawing.text(36, 44, "instance", "title")
    drawing.box(40, 62, 210, 84, "driver (Python)\nyour program\nplan, commit")
    drawing.box(330, 62, 210, 84, "JVM\nSpark", "spark")
    drawing.box(330, 196, 210, 114, "Python workers\nfetch, SQL UDFs, state,\nproduce", "spark")
    drawing.box(40, 180, 210, 60, "guardian\ngroup membership")
    drawing.box(40, 256, 210, 60, "replica process\nrestore, standby copies", "state")
    drawing.box(600, 62, 140, 248, "Kafka\nbrokers", "kafka")
    drawing.arrow((252, 104), (328, 104))
    drawing.arrow((400, 148), (400, 194))
    drawing.arrow((145, 178), (145, 148))
    drawing.arrow((542, 250), (598, 250))
    drawing.arrow((252, 210), (290, 210), (290, 172), (598, 172), dashed=True)
    drawing.text(552, 240, "data")
    drawing.text(470, 164, "heartbeats")
    return drawing


DIAGRAMS = {"group": _group, "micro-batch": _micro_batch, "processes": _processes}
"""Name of the picture in docs/pictures → its drawing."""
